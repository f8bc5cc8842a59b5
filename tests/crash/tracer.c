// SPDX-License-Identifier: Apache-2.0
/*
 * Kill a process before or after its n-th state-changing system call, let its n-th disk call fail, or count them.
 *
 *	tracer --filter			the seccomp program that the process is to load, on stdout
 *	tracer STATE [SURVIVING]	serve: each line of stdin is the pid of a process to trace to its end
 *
 * The process loads the filter itself and arms the tracer with prctl(MARK, n, how): the n-th call from there on
 * is its last; 0 counts only. Or the n-th write or sync from there on ends with EIO and is not done, or each from
 * that on. The answers on stdout: "ready", at each mark "mark COUNT DISK" (calls since the last one, and those to
 * the disk), "killed N before|after NAME", "refused N NAME", and at the end "gone STATUS" (a wait status).
 *
 * STATE is the directory on the disk that fails. What a power loss would leave of it is kept in SURVIVING: see
 * surviving.c.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <limits.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
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

/* What prctl(MARK, n, how) asks for. */
enum how { BEFORE, AFTER, REFUSE_ONE, REFUSE_ALL };

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
	unsigned long disk; /* those of them that write to a disk or sync it */
	unsigned long fatal; /* which of them is the last one, or fails; 0: none */
	enum how how;
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
	printf("killed %lu %s %s\n", trace->fatal, trace->how == AFTER ? "after" : "before", trace->last);
	if (kill(trace->leader, SIGKILL) < 0 && errno != ESRCH)
		die("kill");
}

static const char *disk = "";

/* Whether the call writes to a file of the disk, or syncs it. */
static int is_disk(pid_t tid, int number, int fd)
{
	char link[64], path[PATH_MAX];
	ssize_t length;

	if (number != SYS_pwrite64 && number != SYS_fsync && number != SYS_fdatasync && number != SYS_ftruncate &&
	    number != SYS_fallocate)
		return 0;
	snprintf(link, sizeof(link), "/proc/%d/fd/%d", tid, fd);
	length = readlink(link, path, sizeof(path));
	return length >= (ssize_t)strlen(disk) && strncmp(path, disk, strlen(disk)) == 0;
}

/* The call that the thread stands before is not made, and ends with EIO. */
static void refuse(pid_t tid)
{
	struct user_regs_struct registers;
	struct iovec all = { &registers, sizeof(registers) };

	if (ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &all) < 0)
		return; /* killed meanwhile */
#if defined(__x86_64__)
	registers.orig_rax = -1;
	registers.rax = -EIO;
#else
	int none = -1;
	struct iovec number = { &none, sizeof(none) };

	ptrace(PTRACE_SETREGSET, tid, NT_ARM_SYSTEM_CALL, &number);
	registers.regs[0] = -EIO;
#endif
	ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &all);
}

/* Whether the disk call that was counted just now is to fail. */
static int is_refused(const struct trace *trace)
{
	if (trace->fatal == 0 || trace->disk < trace->fatal)
		return 0;
	return trace->how == REFUSE_ALL || (trace->how == REFUSE_ONE && trace->disk == trace->fatal);
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
		printf("mark %lu %lu\n", trace->count, trace->disk);
		trace->count = trace->disk = 0;
		trace->fatal = info.seccomp.args[1];
		trace->how = info.seccomp.args[2];
		resume(PTRACE_CONT, tid, 0);
		return;
	}
	if (is_disk(tid, calls[index].number, info.seccomp.args[0])) {
		trace->disk++;
		if (is_refused(trace)) {
			if (trace->disk == trace->fatal)
				printf("refused %lu %s\n", trace->fatal, calls[index].name);
			trace->count++;
			refuse(tid);
			resume(PTRACE_CONT, tid, 0);
			return;
		}
	}
	if (!trace->killed && ++trace->count == trace->fatal && trace->how <= AFTER) {
		trace->last = calls[index].name;
		if (trace->how == AFTER)
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
	if (argc >= 2)
		disk = argv[1];
	if (argc == 3)
		surviving_of(argv[1], argv[2]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (scanf("%d", &pid) == 1)
		follow(pid);
	return 0;
}
