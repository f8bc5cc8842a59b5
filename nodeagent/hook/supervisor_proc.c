// SPDX-License-Identifier: Apache-2.0
/* What /proc says of the programs that are supervised. 0 or false where they are gone. */
#include "supervisor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* The start of a file as text; false where it cannot be read. */
static bool read_text(const char *path, char *text, size_t size)
{
	const int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got;

	if (file < 0)
		return false;
	got = read(file, text, size - 1);
	close(file);
	if (got < 0)
		return false;
	text[got] = '\0';
	return true;
}

static bool read_process(pid_t process, const char *name, char *text, size_t size)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/%s", process, name);
	return read_text(path, text, size);
}

/* A program may name itself "x\nTgid:\t1": the kernel escapes the newline in that line, so the search is safe. */
static pid_t read_process_of(pid_t thread)
{
	char text[1024];
	const char *line;

	if (!read_process(thread, "status", text, sizeof(text)))
		return 0;
	line = strstr(text, "\nTgid:");
	return line ? (pid_t)strtol(line + 6, NULL, 10) : 0;
}

/* Only root moves a thread between cgroups, so that once is enough. The line of version 2 is "0::/path". */
static bool is_within(pid_t thread, const char *cgroup)
{
	const size_t length = strlen(cgroup);
	char text[4096];
	const char *line;

	if (!read_process(thread, "cgroup", text, sizeof(text)))
		return false;
	line = strncmp(text, "0::", 3) ? strstr(text, "\n0::") : text;
	if (!line)
		return false;
	line += line == text ? 3 : 4;
	return !strncmp(line, cgroup, length) && (line[length] == '/' || line[length] == '\n');
}

static bool look_at(int directory, const char *name, struct stat *status)
{
	struct statx known;

	/* Nothing is asked of its file system: one of the user's own may not answer. */
	if (statx(directory, name, AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, 0, &known))
		return false;
	status->st_mode = known.stx_mode;
	status->st_ino = known.stx_ino;
	status->st_dev = makedev(known.stx_dev_major, known.stx_dev_minor);
	status->st_rdev = makedev(known.stx_rdev_major, known.stx_rdev_minor);
	return true;
}

/*
 * What a thread's descriptor leads to, and whose thread it is. Threads ask again and again, and both `status` and the
 * way to the directory are dear. A directory that is kept is that thread's and nobody else's, whatever its number:
 * once it has ended, nothing is found there.
 */
bool proc_look_at(const struct supervised *lease, pid_t thread, int descriptor, pid_t *process, struct stat *status)
{
	static struct { pid_t thread, process; int descriptors; } threads[64];
	const size_t slot = (size_t)thread % 64;
	char path[64], name[16];

	snprintf(name, sizeof(name), "%d", descriptor);
	if (threads[slot].thread == thread && look_at(threads[slot].descriptors, name, status)) {
		*process = threads[slot].process;
		return true;
	}
	if (threads[slot].thread)
		files_forget(&threads[slot].descriptors);
	*process = threads[slot].process = read_process_of(thread);
	threads[slot].thread = *process ? thread : 0;
	errno = ESRCH;
	if (!*process)
		return false;
	if (lease->within && !is_within(thread, lease->within)) {
		threads[slot].thread = 0;
		errno = EPERM;
		return false;
	}
	snprintf(path, sizeof(path), "/proc/%d/task/%d/fd", *process, thread);
	threads[slot].descriptors = files_keep(path, O_PATH | O_DIRECTORY);
	snprintf(path, sizeof(path), "/proc/%d/task/%d/fd/%d", *process, thread, descriptor);
	return look_at(AT_FDCWD, path, status);
}

/* Field 22 of proc_pid_stat(5); the command's name may hold blanks and parentheses. */
uint64_t proc_start_time(pid_t process)
{
	char text[1024];
	const char *at;

	if (!read_process(process, "stat", text, sizeof(text)))
		return 0;
	at = strrchr(text, ')');
	for (int field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	return at ? strtoull(at + 1, NULL, 10) : 0;
}

/* Whether the thread may be inside an ioctl still: 16, or 54 by int 0x80; "running" tells nothing. */
bool proc_in_ioctl(pid_t thread)
{
	char text[256];

	if (!read_process(thread, "syscall", text, sizeof(text)))
		return false;
	return !strncmp(text, "16 ", 3) || !strncmp(text, "54 ", 3) || !strncmp(text, "running", 7);
}

static enum mapped mapped_by(const char *maps, uint64_t start, uint64_t end)
{
	enum mapped found = MAPPINGS_UNSEEN;
	FILE *lines = fopen(maps, "re");
	char line[512];

	while (lines && found != MAPPED && fgets(line, sizeof(line), lines)) {
		unsigned long from, to;

		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			found = from < end && start < to ? MAPPED : UNMAPPED;
	}
	if (lines)
		fclose(lines);
	return found;
}

/*
 * Whether anything is mapped in the range. The first thread that shows mappings tells for all: one that has ended
 * shows none, and the leader may have ended long before the others.
 */
enum mapped proc_mapped(pid_t process, uint64_t start, uint64_t end)
{
	enum mapped found = MAPPINGS_UNSEEN;
	char path[64];
	DIR *threads;

	snprintf(path, sizeof(path), "/proc/%d/task", process);
	threads = opendir(path);
	for (const struct dirent *entry; threads && found == MAPPINGS_UNSEEN && (entry = readdir(threads));) {
		snprintf(path, sizeof(path), "/proc/%d/task/%.16s/maps", process, entry->d_name);
		found = mapped_by(path, start, end);
	}
	if (threads)
		closedir(threads);
	return found;
}

/* The number that an open file begins with now. */
bool proc_read_number(int file, uint64_t *number)
{
	char text[32];
	const ssize_t got = pread(file, text, sizeof(text) - 1, 0);

	if (got <= 0)
		return false;
	text[got] = '\0';
	*number = strtoull(text, NULL, 10);
	return true;
}

/* The number that a file begins with. */
uint64_t proc_number(const char *path)
{
	char text[32];

	return read_text(path, text, sizeof(text)) ? strtoull(text, NULL, 10) : 0;
}
