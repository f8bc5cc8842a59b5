// SPDX-License-Identifier: Apache-2.0
/*
 * What the agent, in its sandbox, asks of a process of PID 1's: nodeagent-outside.socket has us started with the
 * connection on stdin. One message of NUL-ended words, with descriptors; the answer is an errno's number.
 *
 *	launch REQUEST N,N,...		as `launch REQUEST`; the descriptors that came are to have the numbers N
 *	mount OPTIONS DIRECTORY...	a tmpfs for usage files on each: nodeagent/adapters/hook_space.py
 *	unmount - DIRECTORY...
 *	probe -, probe-ipc -		as those commands; what they say is in the way is the answer
 */
#define _GNU_SOURCE
#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_WORDS 10
#define MOST_DESCRIPTORS 16
#define BELOW "/run/nodeagent/"

static bool same(pid_t pid, const char *name)
{
	char path[64], own[64];
	struct stat theirs, ours;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	snprintf(own, sizeof(own), "/proc/self/%s", name);
	return !stat(path, &theirs) && !stat(own, &ours) && theirs.st_dev == ours.st_dev &&
	       theirs.st_ino == ours.st_ino;
}

/* The node's root, not a container's: whoever is heard here is as good as PID 1 (threat 7). */
static bool trusted(int connection)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	return !getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.uid == 0 && peer.pid > 0 &&
	       same(peer.pid, "ns/user") && same(peer.pid, "ns/pid") && same(peer.pid, "root");
}

/* The number of descriptors received, or -1. The words are split in place. */
static int receive(int connection, char *text, size_t size, char *words[MOST_WORDS], int *descriptors)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(MOST_DESCRIPTORS * sizeof(int))];
	} control;
	struct iovec vector = { text, size };
	struct msghdr message = { .msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	const ssize_t length = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
	const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	int count = 0;

	if (length <= 0 || message.msg_flags & (MSG_TRUNC | MSG_CTRUNC) || text[length - 1])
		return -1;
	for (char *at = text; at < text + length && count < MOST_WORDS; at += strlen(at) + 1)
		words[count++] = at;
	if (!header)
		return 0;
	if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
		return -1;
	count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
	memcpy(descriptors, CMSG_DATA(header), (size_t)count * sizeof(int));
	return count;
}

/* Give each the number that it has in the agent. First out of the way of all of these. */
static int renumber(const char *numbers, int *descriptors, int count)
{
	int wanted[MOST_DESCRIPTORS], above = 3;

	for (int i = 0; i < count; i++, numbers += *numbers == ',') {
		wanted[i] = (int)strtol(numbers, (char **)&numbers, 10);
		if (wanted[i] < 3)
			return EINVAL;
		above = wanted[i] >= above ? wanted[i] + 1 : above;
	}
	for (int i = 0; i < count; i++) {
		const int moved = fcntl(descriptors[i], F_DUPFD_CLOEXEC, above);

		if (moved < 0)
			return errno;
		close(descriptors[i]);
		descriptors[i] = moved;
	}
	for (int i = 0; i < count; i++) {
		if (dup2(descriptors[i], wanted[i]) < 0)
			return errno;
		close(descriptors[i]);
	}
	return 0;
}

/* Its words go to the agent, in one message. */
static int tell_of(int (*probe)(void), int connection)
{
	if (dup2(connection, 1) < 0)
		return errno;
	if (probe())
		exit(fflush(stdout) != 0);
	return 0;
}

/* In a child, so that nothing of a command has the connection. */
static int start(const char *request)
{
	int status;
	const pid_t pid = fork();

	if (!pid) {
		const int nothing = open("/dev/null", O_RDWR);

		if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(nothing, 1) < 0)
			_exit(1);
		if (nothing > 2)
			close(nothing);
		_exit(run(atoi(request)));
	}
	return pid < 0 || waitpid(pid, &status, 0) != pid ? errno : 0;	/* its failures are told to the agent by itself */
}

static int on(const char *verb, const char *options, const char *directory)
{
	if (strncmp(directory, BELOW, strlen(BELOW)) || strstr(directory, ".."))
		return EPERM;
	if (!strcmp(verb, "mount"))
		return mount("gpulease", directory, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options) ? errno : 0;
	if (!strcmp(verb, "unmount"))
		return umount2(directory, UMOUNT_NOFOLLOW) ? errno : 0;
	return EINVAL;
}

/* The first fault; what can be done is done. */
static int on_each(const char *verb, const char *options, char **directories)
{
	int number = 0;

	for (; *directories; directories++) {
		const int fault = on(verb, options, *directories);

		number = number ? number : fault;
	}
	return number;
}

static int done(int connection, char *words[MOST_WORDS], int *descriptors, int count)
{
	const char *verb = words[0], *object = words[1];
	int number;

	if (!verb || !object)
		return EINVAL;
	if (!strcmp(verb, "launch") && words[2]) {
		number = renumber(words[2], descriptors, count);
		return number ? number : start(object);
	}
	if (!strcmp(verb, "probe"))
		return tell_of(probe, connection);
	if (!strcmp(verb, "probe-ipc"))
		return tell_of(probe_ipc, connection);
	return on_each(verb, object, words + 2);
}

int outside(void)
{
	static char text[4096];
	char *words[MOST_WORDS + 1] = { 0 };	/* a NULL behind the last */
	int descriptors[MOST_DESCRIPTORS], count, number;
	const int connection = 0;

	if (!trusted(connection)) {
		fputs("gpulease-supervisor: the peer is not root of this node\n", stderr);
		return 1;
	}
	count = receive(connection, text, sizeof(text), words, descriptors);
	number = count < 0 ? EINVAL : done(connection, words, descriptors, count);
	return dprintf(connection, "%d", number) < 0;
}
