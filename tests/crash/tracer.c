// SPDX-License-Identifier: Apache-2.0
/*
 * Kill a process before or after its n-th state-changing system call, or let it run and count them.
 *
 *	tracer --filter			the seccomp program that the process is to load, on stdout
 *	tracer [STATE SURVIVING]	serve: each line of stdin is the pid of a process to trace to its end
 *
 * The process loads the filter itself and arms the tracer with prctl(MARK, n, after): the n-th call from there on
 * is its last; 0 counts only. The answers on stdout: "ready", at each mark "mark COUNT" (calls since the last
 * one), "killed N before|after NAME", and at the end "gone STATUS" (a wait status).
 *
 * With STATE, what a power loss would leave of that directory is kept in SURVIVING: see surviving.c.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tracer.h"

#define MARK 0x63726173 /* no prctl of the kernel's */
#define MOST_CHILDREN 64

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "the tracer does not know this architecture"
#endif

/* What a call needs to count: nothing, a writing open mode in argument *arg*, or a descriptor beyond stderr. */
enum when { ALWAYS, WRITING, BEYOND_STDERR, MARKED };

struct call {
	int number;
	const char *name;
	enum when when;
	int argument;
};

#define CALL(name) { SYS_##name, #name, ALWAYS, 0 }

/*
 * Whatever outlives the process. openat2 is left out: the agent opens directories with it. What changes memory
 * only, the database's shared index among it, dies with the process or is made anew.
 */
static const struct call calls[] = {
	{ SYS_openat, "openat", WRITING, 2 },
	{ SYS_write, "write", BEYOND_STDERR, 0 },
	{ SYS_prctl, "prctl", MARKED, 0 },
	CALL(pwrite64), CALL(writev), CALL(pwritev), CALL(pwritev2), CALL(sendfile), CALL(copy_file_range),
	CALL(ftruncate), CALL(truncate), CALL(fallocate), CALL(fsync), CALL(fdatasync),
	CALL(renameat), CALL(renameat2), CALL(unlinkat), CALL(mkdirat), CALL(mknodat), CALL(linkat), CALL(symlinkat),
	CALL(fchmod), CALL(fchmodat), CALL(fchown), CALL(fchownat),
	CALL(setxattr), CALL(lsetxattr), CALL(fsetxattr),
	CALL(removexattr), CALL(lremovexattr), CALL(fremovexattr),
	CALL(mount), CALL(umount2), CALL(kill), CALL(tgkill), CALL(pidfd_send_signal),
	CALL(shmget), CALL(shmctl), CALL(msgget), CALL(msgctl), CALL(semget), CALL(semctl),
#ifdef SYS_open
	{ SYS_open, "open", WRITING, 1 },
	CALL(creat), CALL(rename), CALL(unlink), CALL(mkdir), CALL(rmdir), CALL(mknod), CALL(link), CALL(symlink),
	CALL(chmod), CALL(chown), CALL(lchown),
#endif
};

#define CALLS (sizeof(calls) / sizeof(calls[0]))

/* ---- the filter ------------------------------------------------------------------------------------------- */

static void emit(struct sock_filter *program, size_t *length, struct sock_filter instruction)
{
	program[(*length)++] = instruction;
}

static void emit_call(struct sock_filter *program, size_t *length, size_t index)
{
	const struct call *call = &calls[index];
	const unsigned int offset = offsetof(struct seccomp_data, args) + 8 * call->argument; /* its low half */
	const unsigned int writing = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;
	const struct sock_filter trace = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE | index);
	const struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);

	emit(program, length, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call->number, 0,
							   call->when == ALWAYS ? 1 : 4));
	if (call->when == ALWAYS) {
		emit(program, length, trace);
		return;
	}
	emit(program, length, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset));
	if (call->when == WRITING)
		emit(program, length, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, writing, 0, 1));
	else if (call->when == BEYOND_STDERR)
		emit(program, length, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 2, 0, 1));
	else
		emit(program, length, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MARK, 0, 1));
	emit(program, length, trace);
	emit(program, length, allow);
}

static int print_filter(void)
{
	struct sock_filter program[5 * CALLS + 5];
	size_t length = 0;

	emit(program, &length, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
							    offsetof(struct seccomp_data, arch)));
	emit(program, &length, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0));
	emit(program, &length, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
	emit(program, &length, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
							    offsetof(struct seccomp_data, nr)));
	for (size_t index = 0; index < CALLS; index++)
		emit_call(program, &length, index);
	emit(program, &length, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
	return fwrite(program, sizeof(program[0]), length, stdout) == length ? 0 : 1;
}

/* ---- one process to its end ------------------------------------------------------------------------------- */

struct trace {
	pid_t leader;
	unsigned long count; /* state-changing calls since the last mark */
	unsigned long fatal; /* which of them is the last one; 0: none */
	int after;
	int killed;
	pid_t dying; /* the thread whose call is to end before the kill */
	const char *last;
	pid_t children[MOST_CHILDREN]; /* they die with it, or the end would never come */
	size_t started;
};

static void die(const char *what)
{
	fprintf(stderr, "tracer: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void resume(enum __ptrace_request how, pid_t tid, int signal)
{
	/* ESRCH: killed meanwhile; its end is the next that waitpid tells of it. */
	if (ptrace(how, tid, 0, signal) < 0 && errno != ESRCH)
		die("ptrace: resume");
}

static void kill_now(struct trace *trace)
{
	trace->killed = 1;
	printf("killed %lu %s %s\n", trace->fatal, trace->after ? "after" : "before", trace->last);
	if (kill(trace->leader, SIGKILL) < 0 && errno != ESRCH)
		die("kill");
}

/* A thread stands before a call that counts. Killed here, the call never happens. */
static void at_call(struct trace *trace, pid_t tid)
{
	struct __ptrace_syscall_info info;
	unsigned long index;

	if (ptrace(PTRACE_GETEVENTMSG, tid, 0, &index) < 0 || index >= CALLS ||
	    ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof(info), &info) < 0) {
		resume(PTRACE_CONT, tid, 0); /* killed meanwhile */
		return;
	}
	if (calls[index].when == MARKED) {
		printf("mark %lu\n", trace->count);
		trace->count = 0;
		trace->fatal = info.seccomp.args[1];
		trace->after = info.seccomp.args[2] != 0;
		resume(PTRACE_CONT, tid, 0);
		return;
	}
	if (!trace->killed && ++trace->count == trace->fatal) {
		trace->last = calls[index].name;
		if (trace->after)
			trace->dying = tid;
		else
			kill_now(trace);
	}
	if (calls[index].number == SYS_fsync || calls[index].number == SYS_fdatasync)
		surviving_begin(tid, info.seccomp.args[0]);
	resume(trace->dying == tid || surviving_awaits(tid) ? PTRACE_SYSCALL : PTRACE_CONT, tid, 0);
}

static void after_call(struct trace *trace, pid_t tid)
{
	struct __ptrace_syscall_info info;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof(info), &info) > 0 && info.op == PTRACE_SYSCALL_INFO_EXIT)
		surviving_end(tid, info.exit.is_error);
	if (trace->dying == tid && !trace->killed)
		kill_now(trace);
	resume(PTRACE_CONT, tid, 0);
}

static void at_stop(struct trace *trace, pid_t tid, int status)
{
	const int event = status >> 16, signal = WSTOPSIG(status);
	unsigned long child;

	if ((event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK) && trace->started < MOST_CHILDREN &&
	    ptrace(PTRACE_GETEVENTMSG, tid, 0, &child) == 0)
		trace->children[trace->started++] = (pid_t)child;
	if (event == PTRACE_EVENT_SECCOMP)
		at_call(trace, tid);
	else if (signal == (SIGTRAP | 0x80))
		after_call(trace, tid);
	else if (event == PTRACE_EVENT_STOP && signal != SIGTRAP)
		resume(PTRACE_LISTEN, tid, 0);
	else
		resume(PTRACE_CONT, tid, event ? 0 : signal);
}

static void follow(pid_t leader)
{
	struct trace trace = { .leader = leader };
	int status, ended = 0;
	pid_t tid;

	if (ptrace(PTRACE_SEIZE, leader, 0, PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK |
		   PTRACE_O_TRACEVFORK | PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) < 0)
		die("seize");
	puts("ready");
	/* Until nothing is traced any more: threads and children too. */
	while ((tid = waitpid(-1, &status, __WALL)) > 0 || errno == EINTR) {
		if (tid <= 0)
			continue;
		if (WIFSTOPPED(status))
			at_stop(&trace, tid, status);
		else if (tid == leader) {
			ended = status;
			while (trace.started > 0)
				kill(trace.children[--trace.started], SIGKILL);
		}
	}
	printf("gone %d\n", ended);
}

int main(int argc, char **argv)
{
	pid_t pid;

	if (argc == 2 && strcmp(argv[1], "--filter") == 0)
		return print_filter();
	if (argc == 3)
		surviving_of(argv[1], argv[2]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (scanf("%d", &pid) == 1)
		follow(pid);
	return 0;
}
