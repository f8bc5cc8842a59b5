// SPDX-License-Identifier: Apache-2.0
/*
 * Start the command: enter the lease's cgroup, take the caller's limits, install the filter, become the caller,
 * and only then run its code. Everything before execve is ours, so nobody can have been there first.
 */
#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct failure {
	int number;			/* errno; 0: the listener is ready, its descriptor in `listener` */
	int listener;
	char step[24];
};

static int write_to(int directory, const char *name, const char *text)
{
	const int file = openat(directory, name, O_WRONLY | O_CLOEXEC);
	const ssize_t length = (ssize_t)strlen(text);
	ssize_t written;

	if (file < 0)
		return -1;
	written = write(file, text, (size_t)length);
	close(file);
	return written == length ? 0 : -1;
}

static int take_standard(const struct request *request)
{
	const int given[] = { request->in, request->out, request->err };

	for (int to = 0; to < 3; to++)
		if (dup2(given[to], to) < 0)	/* given ones are above 2: main() saw to that */
			return -1;
	return 0;
}

static int take_limits(const struct request *request)
{
	for (int which = 0; which < RLIM_NLIMITS; which++)
		if (request->limit[which].set && setrlimit(which, &request->limit[which].value))
			return -1;
	if (request->cpus && syscall(SYS_sched_setaffinity, 0, request->cpu_bytes, request->cpus) < 0 &&
	    errno != EINVAL)		/* EINVAL: the cgroup's cpuset has none of them, and rules */
		return -1;
	if (setpriority(PRIO_PROCESS, 0, request->nice))
		return -1;
	return request->oom_adjust ? write_to(AT_FDCWD, "/proc/self/oom_score_adj", request->oom_adjust) : 0;
}

static void take_signals(uint64_t ignored)
{
	sigset_t none;

	for (int number = 1; number < NSIG; number++)
		signal(number, ignored >> (number - 1) & 1 ? SIG_IGN : SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

static int become(const struct request *request)
{
	if (setgroups(request->group_count, request->groups) ||
	    setresgid(request->gid, request->gid, request->gid) ||
	    setresuid(request->uid, request->uid, request->uid))
		return -1;
	return request->no_new_privileges ? prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) : 0;
}

__attribute__((noreturn)) static void fail(int channel, const char *step)
{
	struct failure failure = { .number = errno ? errno : EIO };

	snprintf(failure.step, sizeof(failure.step), "%s", step);
	if (write(channel, &failure, sizeof(failure)) < 0)
		_exit(126);
	_exit(125);
}

/* Never returns: the command, or a failure that says where. */
__attribute__((noreturn)) static void child(const struct request *request, int channel)
{
	struct failure ready = { 0 };
	char go;

	channel = fcntl(channel, F_DUPFD_CLOEXEC, 4);
	if (channel < 0)
		_exit(125);
	if (setsid() < 0)
		fail(channel, "session");
	if (write_to(request->cgroup, "cgroup.procs", "0"))
		fail(channel, "cgroup");
	if (take_standard(request))
		fail(channel, "descriptors");
	if (dup2(request->cwd, 3) != 3)
		fail(channel, "descriptors");
	/* Nothing of the agent's or the supervisor's goes to the user's code; 3 is its directory for now. */
	if ((channel > 4 && syscall(SYS_close_range, 4, channel - 1, 0)) ||
	    syscall(SYS_close_range, channel + 1, ~0U, 0))
		fail(channel, "descriptors");
	if (take_limits(request))
		fail(channel, "limits");
	take_signals(request->ignored);
	umask(request->mask);
	ready.listener = filter_install();
	if (ready.listener < 0) {
		errno = -ready.listener;
		fail(channel, "filter");
	}
	if (write(channel, &ready, sizeof(ready)) != sizeof(ready) || read(channel, &go, 1) != 1)
		_exit(125);		/* the supervisor is gone: nobody would answer */
	close(ready.listener);
	if (become(request))
		fail(channel, "identity");
	if (fchdir(3))			/* with the user's rights */
		fail(channel, "cwd");
	close(3);
	environ = request->envp;
	execvp(request->argv[0], request->argv);	/* by the user's own PATH, with the user's own rights */
	fail(channel, "exec");
}

static pid_t stop(pid_t pid, int channel, int pidfd, int number)
{
	close(channel);
	syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
	waitpid(pid, NULL, 0);
	close(pidfd);
	return -number;
}

pid_t launch(const struct request *request, int *listener, int *pidfd, const char **step)
{
	static struct failure told;
	int channel[2];
	pid_t pid;

	*step = "fork";
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel))
		return -errno;
	pid = fork();
	if (pid < 0)
		return -errno;
	if (!pid)
		child(request, channel[1]);
	close(channel[1]);
	*pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	*step = told.step;
	if (read(channel[0], &told, sizeof(told)) != sizeof(told))
		return stop(pid, channel[0], *pidfd, EIO);
	if (told.number)
		return stop(pid, channel[0], *pidfd, told.number);
	*step = "listener";
	*listener = (int)syscall(SYS_pidfd_getfd, *pidfd, told.listener, 0);
	if (*listener < 0)
		return stop(pid, channel[0], *pidfd, errno);
	*step = told.step;
	/* execve closes the channel: its end means success, a message why not. */
	if (write(channel[0], "!", 1) != 1)
		return stop(pid, channel[0], *pidfd, EIO);
	switch (read(channel[0], &told, sizeof(told))) {
	case 0:
		close(channel[0]);
		return pid;
	case sizeof(told):
		return stop(pid, channel[0], *pidfd, told.number);
	default:
		return stop(pid, channel[0], *pidfd, EIO);
	}
}
