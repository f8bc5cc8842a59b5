// SPDX-License-Identifier: Apache-2.0
/*
 * notify_floor COMMAND...: run the command under the supervisor's own filter, answering each notification "go on"
 * without a look. What a call costs here is the kernel's and the machine's.
 */
#define _GNU_SOURCE
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

int filter_install(void);	/* nodeagent/hook/supervisor_filter.c */

static void ended(int number)
{
	_exit(number != SIGCHLD);
}

int main(int count, char **words)
{
	int listener = -1, channel[2];

	if (count < 2 || pipe(channel))
		return 2;
	signal(SIGCHLD, ended);
	setsid();	/* both as the supervisor and its command: a session is a group of its own to the scheduler */
	if (!syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0)) {	/* a fork whose listener is ours, too */
		setsid();
		listener = filter_install();
		if (write(channel[1], &listener, sizeof(listener)) == sizeof(listener) && listener >= 0)
			execvp(words[1], words + 1);
		_exit(1);
	}
	if (read(channel[0], &listener, sizeof(listener)) != sizeof(listener) || listener < 0)
		return 1;
	for (;;) {
		struct seccomp_notif call = { 0 };
		struct seccomp_notif_resp answer = { .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE };

		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call))
			continue;
		answer.id = call.id;
		ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
	}
}
