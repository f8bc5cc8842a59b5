// SPDX-License-Identifier: Apache-2.0
/*
 * gpulease-supervisor launch FD	run what the request in FD says, supervise it to its end; or else what containers'
 *				runtimes hand over
 * gpulease-supervisor outside		do what the agent asks on stdin, outside of its sandbox
 * gpulease-supervisor probe		exit code 0 where this kernel can supervise; else say why not
 * gpulease-supervisor probe-ipc	the same for shared memory of a command's own
 */
#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void tell(int descriptor, const char *format, ...)
{
	char line[512];
	va_list values;
	int length;

	va_start(values, format);
	length = vsnprintf(line, sizeof(line), format, values);
	va_end(values);
	if (descriptor >= 0 && write(descriptor, line, (size_t)length) != length)
		errno = 0;		/* nobody reads any more */
}

static bool identify(const char *path, struct file_identity *file)
{
	struct stat status;

	if (stat(path, &status))
		return false;
	file->known = true;
	file->device = S_ISCHR(status.st_mode);
	file->number = file->device ? status.st_rdev : status.st_dev;
	file->inode = status.st_ino;
	return true;
}

/* Away from the agent: its unit's end, its terminal and its memory limits are not ours. */
static void settle(int home)
{
	int file;

	setsid();
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	file = home < 0 ? -1 : openat(home, "cgroup.procs", O_WRONLY | O_CLOEXEC);
	if (file >= 0) {
		if (write(file, "0", 1) != 1)
			fprintf(stderr, "gpulease-supervisor: stays in the agent's cgroup: %s\n", strerror(errno));
		close(file);
	}
	file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	if (file >= 0) {
		if (write(file, OOM_ADJUST, strlen(OOM_ADJUST)) < 0)
			errno = 0;
		close(file);
	}
}

/*
 * Answer until the command has ended and no descendant of it is left to notify. When the caller's end of the report
 * goes away first, its wrapper was killed: the command is asked to end, as it would be under `gpulease run` otherwise.
 */
static void serve(struct supervised *lease, const struct launched *command)
{
	enum { LISTENER = 1, COMMAND = 2, REPORT = 4 };
	const struct { int descriptor; struct epoll_event event; } waited[] = {
		{ lease->listener, { EPOLLIN, { .u32 = LISTENER } } },
		{ command->pidfd, { EPOLLIN, { .u32 = COMMAND } } },
		{ command->report, { 0, { .u32 = REPORT } } },	/* errors come unasked */
	};
	const int wait = epoll_create1(EPOLL_CLOEXEC);
	const bool supervised = lease->listener >= 0;
	unsigned int open = supervised ? LISTENER | COMMAND : COMMAND;

	for (size_t i = supervised ? 0 : 1; i < 3; i++) {
		struct epoll_event event = waited[i].event;

		if (epoll_ctl(wait, EPOLL_CTL_ADD, waited[i].descriptor, &event))
			return;		/* its end fails closed */
	}
	while (open) {
		struct epoll_event event;
		int status = 0;

		if (epoll_wait(wait, &event, 1, -1) != 1)
			continue;
		switch (event.data.u32) {
		case LISTENER:
			if (event.events & EPOLLIN && notify_answer(lease))
				break;
			epoll_ctl(wait, EPOLL_CTL_DEL, lease->listener, NULL);	/* the filter's last user is gone */
			open &= ~LISTENER;
			break;
		case COMMAND:
			waitpid(command->pid, &status, 0);
			epoll_ctl(wait, EPOLL_CTL_DEL, command->pidfd, NULL);
			open &= ~COMMAND;
			tell(command->report, "exited %d\n", status);	/* never blocks: take_report() */
			epoll_ctl(wait, EPOLL_CTL_DEL, command->report, NULL);	/* others may keep it open */
			close(command->report);
			break;
		case REPORT:
			epoll_ctl(wait, EPOLL_CTL_DEL, command->report, NULL);
			syscall(SYS_pidfd_send_signal, command->pidfd, SIGTERM, NULL, 0);
			break;
		}
	}
}

/* What is to be held; a text that says what is wrong, or NULL. */
static const char *prepare(struct request *request, struct supervised *lease)
{
	const char *wrong = limits_read(request->limits, request->lease, &lease->limits);

	if (wrong)
		return wrong;
	if (!identify(request->kfd, &lease->kfd))
		return "there is no KFD node, so there is nothing to hold";
	for (size_t i = 0; i < request->renders; i++)
		if (!identify(request->render[i].path, &request->render[i].file))
			return "a render node that the request names does not exist";
	lease->kfd_processes = request->kfd_processes;
	lease->within = request->within;
	lease->render = request->render;
	lease->renders = request->renders;
	return notify_sizes_fit() ? NULL : "the kernel's notifications are larger than this supervisor knows";
}

static int run_command(struct request *request, struct supervised *lease)
{
	static struct told told;
	struct launched command;

	if (!launch(request, &command, &told)) {
		tell(request->answer, "failed %s %d %d %s\n", told.step, told.number, told.detail, told.word);
		return 1;
	}
	lease->listener = command.listener;
	tell(request->answer, "started %d\n", command.pid);
	close(request->answer);
	close(request->cgroup);
	close(request->peer);
	serve(lease, &command);
	return 0;
}

static int run_containers(struct request *request, struct supervised *lease)
{
	if (!attend_open(request->socket)) {
		tell(request->answer, "failed socket %d 0 -\n", errno);
		return 1;
	}
	tell(request->answer, "started %d\n", getpid());
	close(request->answer);
	attend(lease);
	return 0;
}

int run(int descriptor)
{
	static struct request request;
	static struct supervised lease;
	const char *wrong = request_read(descriptor, &request);
	pid_t pid;

	if (!wrong && request.limits >= 0)
		wrong = prepare(&request, &lease);
	if (wrong) {
		fprintf(stderr, "gpulease-supervisor: %s\n", wrong);
		tell(request.answer, "failed request %d 0 -\n", EINVAL);
		return 1;
	}
	pid = fork();			/* nobody's child: the agent waits for the first process only */
	if (pid)
		return pid < 0;
	settle(request.home);
	return request.socket ? run_containers(&request, &lease) : run_command(&request, &lease);
}

/* The errno of trying it in a child of ours; 0: it works. */
static int tried(int (*try)(void))
{
	int status;
	const pid_t pid = fork();

	if (!pid)
		_exit(try());
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return EAGAIN;
	return WEXITSTATUS(status);
}

static int try_filter(void)
{
	const int listener = filter_install();

	return listener < 0 ? -listener : 0;
}

static int try_private_ipc(void)
{
	return chdir("/") || private_ipc() ? errno : 0;
}

int probe(void)
{
	const int fault = tried(try_filter);

	if (fault)
		printf("seccomp user notification: %s (needs Linux 5.19 and root)\n", strerror(fault));
	else if (!notify_sizes_fit())
		puts("the kernel's notifications are larger than this supervisor knows");
	else
		return 0;
	return 1;
}

int probe_ipc(void)
{
	const int fault = tried(try_private_ipc);

	if (fault)
		printf("an IPC namespace and a /dev/shm in it: %s (needs CAP_SYS_ADMIN, and /dev/shm)\n",
		       strerror(fault));
	return fault != 0;
}

int main(int count, char **words)
{
	if (count == 2 && !strcmp(words[1], "probe"))
		return probe();
	if (count == 2 && !strcmp(words[1], "probe-ipc"))
		return probe_ipc();
	if (count == 3 && !strcmp(words[1], "launch"))
		return run(atoi(words[2]));
	if (count == 2 && !strcmp(words[1], "outside"))
		return outside();
	fputs("usage: gpulease-supervisor launch FD | outside | probe | probe-ipc\n", stderr);
	return 2;
}
