// SPDX-License-Identifier: Apache-2.0
/*
 * Start the command: enter the lease's cgroup, take the caller's descriptors and limits, install the filter, leave the
 * node's shared memory where that is asked, become the caller, and only then run its code. Everything before execve is ours, so nobody can have been there first.
 * Whatever the caller's files can stall, they stall in the child; the parent gives up on it in time.
 */
#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
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
#include <time.h>
#include <unistd.h>

#define LONGEST_START_MS 3000		/* the agent waits four seconds */
#define LONGEST_END_MS 500

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

__attribute__((noreturn)) static void fail(int channel, struct told *told, const char *step)
{
	if (step) {
		told->number = errno ? errno : EIO;
		snprintf(told->step, sizeof(told->step), "%s", step);
	}
	_exit(write(channel, told, sizeof(*told)) < 0 ? 126 : 125);
}

/* As 3 and 4, which are gone with execve. Nothing of the agent's or the supervisor's goes to the user's code. */
static int keep_only(int cwd, int channel)
{
	if ((cwd != 3 && dup3(cwd, 3, O_CLOEXEC) != 3) || dup3(channel, 4, O_CLOEXEC) != 4)
		return -1;
	return (int)syscall(SYS_close_range, 5, ~0U, 0);
}

/*
 * With all of the user's rights and no others, which cannot be taken back: by a process that shares our directory, and
 * our descriptors, so that its end closes none.
 */
static int enter(const struct request *request, int cwd)
{
	const pid_t pid = (pid_t)syscall(SYS_clone, CLONE_FS | CLONE_FILES, 0, 0, 0, 0);
	int status;

	if (!pid)
		_exit(become(request) || prctl(PR_SET_PDEATHSIG, SIGKILL) || fchdir(cwd) ? errno : 0);
	if (pid < 0 || waitpid(pid, &status, __WALL) != pid)
		return -1;
	errno = WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
	return errno ? -1 : 0;
}

/* Never returns: the command, or a failure that says where. */
__attribute__((noreturn)) static void child(const struct request *request, int channel)
{
	static struct told told;
	struct taken taken = { 0 };
	char go;

	channel = fcntl(channel, F_DUPFD_CLOEXEC, 5);
	if (channel < 0)
		_exit(125);
	if (setsid() < 0)
		fail(channel, &told, "session");
	if (write_to(request->cgroup, "cgroup.procs", "0"))
		fail(channel, &told, "cgroup");
	if (!take(request, &taken, &told))
		fail(channel, &told, NULL);
	if (take_limits(request))
		fail(channel, &told, "limits");
	take_signals(request->ignored);
	umask(request->mask);
	told.report = taken.report;
	told.listener = request->limits < 0 ? -1 : filter_install();
	if (request->limits >= 0 && told.listener < 0) {
		errno = -told.listener;
		fail(channel, &told, "filter");
	}
	if (write(channel, &told, sizeof(told)) != sizeof(told) || read(channel, &go, 1) != 1)
		_exit(125);		/* the supervisor is gone: nobody would answer */
	if (keep_only(taken.cwd, channel))
		fail(channel, &told, "descriptors");
	channel = 4;
	if (enter(request, 3))
		fail(channel, &told, "cwd");
	if (request->private_ipc && private_ipc())
		fail(channel, &told, errno == EXDEV ? "shm" : "private_ipc");
	if (become(request))
		fail(channel, &told, "identity");
	environ = taken.envp;
	execvp(taken.argv[0], taken.argv);	/* by the user's own PATH, with the user's own rights */
	fail(channel, &told, "exec");
}

static int64_t milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Kill it, and wait for it as long as one may wait for what hangs on a file system of the user's. */
static bool stop(pid_t pid, int channel, int pidfd)
{
	struct pollfd ended = { .fd = pidfd, .events = POLLIN };

	close(channel);
	syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
	poll(&ended, 1, LONGEST_END_MS);
	waitpid(pid, NULL, WNOHANG);
	close(pidfd);
	return false;
}

static bool failed(struct told *told, const char *step, int number)
{
	snprintf(told->step, sizeof(told->step), "%s", step);
	told->number = number;
	return false;
}

/* True: the child's message, or with `ended` its end of the channel closed, which execve does. */
static bool receive(int channel, struct told *told, int64_t deadline, bool *ended)
{
	struct pollfd ready = { .fd = channel, .events = POLLIN };
	const int64_t left = deadline - milliseconds();
	ssize_t got;

	if (poll(&ready, 1, left > 0 ? (int)left : 0) != 1)
		return failed(told, "timeout", ETIMEDOUT);
	got = read(channel, told, sizeof(*told));
	*ended = !got;
	return !got || got == sizeof(*told) || failed(told, "child", EIO);
}

bool launch(const struct request *request, struct launched *launched, struct told *told)
{
	const int64_t deadline = milliseconds() + LONGEST_START_MS;
	const bool supervised = request->limits >= 0;
	int channel[2];
	bool ended;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel))
		return failed(told, "fork", errno);
	pid = fork();
	if (pid < 0)
		return failed(told, "fork", errno);
	if (!pid)
		child(request, channel[1]);
	close(channel[1]);
	launched->pid = pid;
	launched->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (!receive(channel[0], told, deadline, &ended) || told->number)
		return stop(pid, channel[0], launched->pidfd);
	launched->listener = launched->report = -1;
	if (!ended)
		launched->report = (int)syscall(SYS_pidfd_getfd, launched->pidfd, told->report, 0);
	if (!ended && supervised)
		launched->listener = (int)syscall(SYS_pidfd_getfd, launched->pidfd, told->listener, 0);
	if (launched->report < 0 || (supervised && launched->listener < 0) || write(channel[0], "!", 1) != 1) {
		failed(told, "listener", ended ? EIO : errno);
		return stop(pid, channel[0], launched->pidfd);
	}
	if (!receive(channel[0], told, deadline, &ended) || !ended)
		return stop(pid, channel[0], launched->pidfd);
	close(channel[0]);
	return true;
}
