// SPDX-License-Identifier: Apache-2.0
/*
 * A lease's containers. Their engine's runtime installs the filter, since the container's profile says so, and hands
 * the listener over by the socket that the profile names: once for each process that it starts, as for `docker exec`
 * (OCI runtime specification, config-linux.md: seccomp, listenerPath). What it writes beside it about the container
 * is not believed, and not read: who asks tells itself by its cgroup.
 */
#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MOST_HANDED 8			/* descriptors in one message; more than one is wrong */
#define PAUSE_MS 100

static struct sockaddr_un address = { .sun_family = AF_UNIX };
static ino_t inode;
static int door = -1, removal = -1, wait = -1;

static bool path_of(char *to, size_t size, const char *path, const char *suffix)
{
	const int length = snprintf(to, size, "%s%s", path, suffix);

	errno = ENAMETOOLONG;
	return length > 0 && (size_t)length < size;
}

static bool is_there(void)
{
	struct stat status;

	return !lstat(address.sun_path, &status) && status.st_ino == inode;
}

/* It gets its name once it is served, so that who finds it is answered. */
bool attend_open(const char *path)
{
	struct sockaddr_un fresh = { .sun_family = AF_UNIX };
	struct stat status;

	if (!path_of(address.sun_path, sizeof(address.sun_path), path, "") ||
	    !path_of(fresh.sun_path, sizeof(fresh.sun_path), path, ".new"))
		return false;
	door = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	removal = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	unlink(fresh.sun_path);
	umask(0177);
	if (door < 0 || removal < 0 || bind(door, (struct sockaddr *)&fresh, sizeof(fresh)) ||
	    lstat(fresh.sun_path, &status) || listen(door, SOMAXCONN) ||
	    inotify_add_watch(removal, fresh.sun_path, IN_ATTRIB) < 0 || rename(fresh.sun_path, address.sun_path))
		return false;
	inode = status.st_ino;
	return true;
}

enum kind { DOOR = 1, REMOVAL, RUNTIME, LISTENER };

static bool watch(enum kind kind, int descriptor)
{
	struct epoll_event event = { EPOLLIN, { .u64 = (uint64_t)kind << 32 | (uint32_t)descriptor } };

	return !epoll_ctl(wait, EPOLL_CTL_ADD, descriptor, &event);
}

static bool is_root(int runtime)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	return !getsockopt(runtime, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.uid == 0;
}

/* Some runtimes connect long before they have anything to hand over: crun does. So nobody waits for them here. */
static void let_in(void)
{
	const int runtime = accept4(door, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (runtime < 0 && (errno == EMFILE || errno == ENFILE))
		poll(NULL, 0, PAUSE_MS);	/* until a process has ended */
	else if (runtime >= 0 && (!is_root(runtime) || !watch(RUNTIME, runtime)))
		close(runtime);
}

/* Nothing else answers so: ENOENT means that there is no notification of that number. */
static bool is_listener(int descriptor)
{
	uint64_t none = 0;

	return ioctl(descriptor, SECCOMP_IOCTL_NOTIF_ID_VALID, &none) < 0 && errno == ENOENT;
}

/* The first bytes of its message carry the descriptor; -1: it is not one alone, or no listener. */
static int handed(int runtime)
{
	union { char bytes[CMSG_SPACE(MOST_HANDED * sizeof(int))]; struct cmsghdr aligned; } control;
	char text[256];
	struct iovec part = { text, sizeof(text) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	int files[MOST_HANDED], listener = -1;
	const struct cmsghdr *head;
	size_t count;

	if (recvmsg(runtime, &message, MSG_CMSG_CLOEXEC) <= 0)
		return -1;
	head = CMSG_FIRSTHDR(&message);
	if (!head || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
		return -1;
	count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
	memcpy(files, CMSG_DATA(head), count * sizeof(int));
	for (size_t i = 0; i < count; i++) {
		if (count == 1 && is_listener(files[i]))
			listener = files[i];
		else
			close(files[i]);
	}
	return listener;
}

/* What is left unread does not count as an error for a runtime that has written it all. */
static bool take_over(int runtime)
{
	const int listener = handed(runtime);

	close(runtime);
	if (listener < 0)
		return false;
	filter_hurry(listener);
	if (watch(LISTENER, listener))
		return true;
	close(listener);		/* its container's calls fail: ENOSYS */
	return false;
}

/* No runtime gets in any more; what runs is answered for. */
static void shut(void)
{
	if (door < 0 || is_there())
		return;
	close(door);
	door = -1;
}

/* Until the socket has been removed, as the lease's end does, and the last process that is asked about has ended. */
void attend(struct supervised *lease)
{
	size_t listeners = 0;

	wait = epoll_create1(EPOLL_CLOEXEC);
	if (wait < 0 || !watch(DOOR, door) || !watch(REMOVAL, removal))
		return;			/* its end fails closed */
	shut();
	while (door >= 0 || listeners) {
		struct epoll_event event;
		char skipped[4096];

		if (epoll_wait(wait, &event, 1, -1) != 1)
			continue;
		const int descriptor = (int)(uint32_t)event.data.u64;

		switch ((enum kind)(event.data.u64 >> 32)) {
		case DOOR:
			let_in();
			break;
		case REMOVAL:
			if (read(descriptor, skipped, sizeof(skipped)) < 0)
				errno = 0;	/* what it says is looked up */
			shut();
			break;
		case RUNTIME:
			listeners += take_over(descriptor);
			break;
		case LISTENER:
			lease->listener = descriptor;
			if (event.events & EPOLLIN && notify_answer(lease))
				break;
			close(descriptor);	/* the filter's last user is gone */
			listeners--;
			break;
		}
	}
}
