// SPDX-License-Identifier: Apache-2.0
/*
 * What the caller offers, taken out of it by number. Only in the child that becomes the command: a file of the user's
 * own file system may stall whoever closes it, and then it is nobody but the command.
 */
#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST_BYTES (6u << 20)		/* the kernel's own bound for the words and environment of one execve */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

static bool failed(struct told *told, const char *step, int number)
{
	snprintf(told->step, sizeof(told->step), "%s", step);
	told->number = number;
	return false;
}

static int take_one(const struct request *request, int number, struct told *told)
{
	const long own = syscall(SYS_pidfd_getfd, request->peer, number, 0);

	if (own < 0) {
		told->detail = number;
		failed(told, "descriptor", errno);
	}
	return (int)own;
}

/*
 * A privileged program's descriptors are not its user's to hand on. The kernel gives /proc/<pid>/fd of one that is
 * not dumpable (setuid, file capabilities) to root; alive afterwards, the caller is still the process of that number.
 */
static bool is_plain(const struct request *request)
{
	struct stat status;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fd", request->peer_pid);
	return !stat(path, &status) && status.st_uid == request->uid &&
	       !syscall(SYS_pidfd_send_signal, request->peer, 0, NULL, 0);
}

/* As 0, 1 and 2 at once: there is no second number to close. */
static bool take_standard(const struct request *request, struct told *told)
{
	for (int to = 0; to < 3; to++) {
		close(to);
		const int own = take_one(request, request->offered.standard[to], told);

		if (own < 0)
			return false;
		if (own != to || fcntl(own, F_SETFD, 0))
			return failed(told, "descriptors", EBADF);
	}
	return true;
}

/* The pipe opened anew, so that the supervisor's end never blocks, whatever the caller sets on its own. */
static bool take_report(const struct request *request, struct taken *taken, struct told *told)
{
	const int given = take_one(request, request->offered.report, told);
	struct stat status;
	char path[64];

	if (given < 0)
		return false;
	if (fstat(given, &status) || !S_ISFIFO(status.st_mode))
		return failed(told, "report", EINVAL);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", given);
	taken->report = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	return taken->report >= 0 || failed(told, "report", errno);
}

/* `count` words from `*at` on, fewer where the text ends, as a vector. */
static char **vector(char **at, const char *limit, size_t count)
{
	char **words = calloc(count + 1, sizeof(*words));

	for (size_t i = 0; words && i < count && *at < limit; i++) {
		words[i] = *at;
		*at += strlen(*at) + 1;
	}
	return words;
}

/* NUL-ended words: how many the command has, the command's, then the environment's. */
static bool parse(char *text, size_t size, struct taken *taken)
{
	const char *limit = text + size;
	char *at = text + strlen(text) + 1, *end;
	const unsigned long count = strtoul(text, &end, 10);
	size_t rest = 0;

	if (end == text || *end || !count || count > size)
		return false;
	taken->argv = vector(&at, limit, count);
	for (const char *word = at; word < limit; word += strlen(word) + 1)
		rest++;
	taken->envp = vector(&at, limit, rest);
	return taken->argv && taken->envp && taken->argv[count - 1];
}

/* Of a sealed memory file alone: nobody changes it meanwhile, and reading it waits for nobody. */
static bool take_words(const struct request *request, struct taken *taken, struct told *told)
{
	const int command = take_one(request, request->offered.command, told);
	struct stat status;
	char *text;
	int seals;

	if (command < 0)
		return false;
	seals = fcntl(command, F_GET_SEALS);
	if (seals < 0 || (seals & SEALS) != SEALS || fstat(command, &status))
		return failed(told, "seals", EPERM);
	if ((size_t)status.st_size > MOST_BYTES)
		return failed(told, "size", E2BIG);
	text = malloc((size_t)status.st_size + 1);
	if (!text || !read_all(command, text, (size_t)status.st_size))
		return failed(told, "words", EIO);
	if (!status.st_size || text[status.st_size - 1] || !parse(text, (size_t)status.st_size, taken))
		return failed(told, "words", EINVAL);
	snprintf(told->word, sizeof(told->word), "%s", taken->argv[0]);
	return true;
}

bool take(const struct request *request, struct taken *taken, struct told *told)
{
	if (!is_plain(request))
		return failed(told, "peer", EPERM);
	if (!take_words(request, taken, told) || !take_report(request, taken, told))
		return false;
	taken->cwd = take_one(request, request->offered.cwd, told);
	if (taken->cwd < 0 || !take_standard(request, told))
		return false;
	return is_plain(request) || failed(told, "peer", EPERM);	/* what was taken is its own */
}
