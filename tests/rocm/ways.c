// SPDX-License-Identifier: Apache-2.0
/*
 * Ways to the fake's first GPU that lead around libraries. Each word is one step, WAY=MIB; each prints its way, the
 * size and what came of asking for that much VRAM.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALLOCATE 0xc0284b16ul
#define VRAM (1u | 1u << 31)
#define GPU 4096
#define SYSCALL_BYTES 2			/* of the instruction */
#define SCRATCH 4096			/* below a stack pointer */

struct allocation {
	uint64_t address, size, handle, mmap_offset;
	uint32_t gpu_id, flags;
};

static struct allocation asked(uint64_t size)
{
	return (struct allocation){ .address = 0x7f0000000000, .size = size, .gpu_id = GPU, .flags = VRAM };
}

/* A system call of our own. Returns 0 or a positive errno, as all ways do. */
static long by_syscall(uint64_t size)
{
	struct allocation allocation = asked(size);

	return syscall(SYS_ioctl, open("/dev/kfd", O_RDWR), ALLOCATE, &allocation) ? errno : 0;
}

/* Have a stopped process, which waits in a system call, make another one. */
static long inject(pid_t pid, long number, long first, long second, const struct allocation *third)
{
	struct user_regs_struct registers;
	uint64_t words[sizeof(*third) / sizeof(uint64_t)], at;

	ptrace(PTRACE_GETREGS, pid, NULL, &registers);
	at = (registers.rsp - SCRATCH) & ~15ull;
	memcpy(words, third, sizeof(words));
	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		ptrace(PTRACE_POKEDATA, pid, at + i * sizeof(*words), words[i]);
	registers.rip -= SYSCALL_BYTES;
	registers.orig_rax = (unsigned long long)-1;	/* the one it waits in is not begun again */
	registers.rax = (unsigned long long)number;
	registers.rdi = (unsigned long long)first;
	registers.rsi = (unsigned long long)second;
	registers.rdx = at;
	ptrace(PTRACE_SETREGS, pid, NULL, &registers);
	ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL);
	waitpid(pid, NULL, 0);
	ptrace(PTRACE_GETREGS, pid, NULL, &registers);
	return -(long)registers.rax;
}

/* Another process of the user, traced: it is made to call the kernel, past all that is loaded into it. */
static long by_ptrace(uint64_t size)
{
	const struct allocation allocation = asked(size);
	int ready[2], file;
	long fault = ESRCH;
	pid_t pid;

	if (pipe(ready))
		return errno;
	pid = fork();
	if (!pid) {
		file = open("/dev/kfd", O_RDWR);
		if (write(ready[1], &file, sizeof(file)) == sizeof(file))
			for (;;)
				pause();
		_exit(1);
	}
	if (read(ready[0], &file, sizeof(file)) == sizeof(file) && !ptrace(PTRACE_ATTACH, pid, NULL, NULL) &&
	    waitpid(pid, NULL, 0) == pid)
		fault = inject(pid, SYS_ioctl, file, ALLOCATE, &allocation);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return fault;
}

/* The one operation that io_uring has for a driver's own calls. */
static long by_io_uring(uint64_t size)
{
	static struct allocation allocation;
	struct io_uring_params params = { 0 };
	const long ring = syscall(SYS_io_uring_setup, 1, &params);
	struct io_uring_sqe *entry;
	struct io_uring_cqe *done;
	char *submitted, *completed;

	if (ring < 0) {
		fprintf(stderr, "no io_uring: %s\n", strerror(errno));
		exit(77);
	}
	submitted = mmap(NULL, SCRATCH, PROT_READ | PROT_WRITE, MAP_SHARED, (int)ring, IORING_OFF_SQ_RING);
	completed = mmap(NULL, SCRATCH, PROT_READ | PROT_WRITE, MAP_SHARED, (int)ring, IORING_OFF_CQ_RING);
	entry = mmap(NULL, SCRATCH, PROT_READ | PROT_WRITE, MAP_SHARED, (int)ring, IORING_OFF_SQES);
	if (submitted == MAP_FAILED || completed == MAP_FAILED || entry == MAP_FAILED)
		return errno;
	allocation = asked(size);
	entry->opcode = IORING_OP_URING_CMD;
	entry->fd = open("/dev/kfd", O_RDWR);
	entry->cmd_op = (uint32_t)ALLOCATE;
	memcpy(entry->cmd, &(void *){ &allocation }, sizeof(void *));
	*(uint32_t *)(submitted + params.sq_off.array) = 0;
	__atomic_store_n((uint32_t *)(submitted + params.sq_off.tail), 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		return errno;
	done = (struct io_uring_cqe *)(completed + params.cq_off.cqes);
	return -done->res;
}

static const struct {
	const char *name;
	long (*ask)(uint64_t size);
} ways[] = {
	{ "syscall", by_syscall },
	{ "ptrace", by_ptrace },
	{ "io_uring", by_io_uring },
};

int main(int count, char **words)
{
	for (int i = 1; i < count; i++) {
		const char *way = strtok(words[i], "="), *mib = strtok(NULL, "=");

		for (size_t known = 0; known < sizeof(ways) / sizeof(*ways); known++) {
			long fault;

			if (strcmp(way, ways[known].name))
				continue;
			fault = ways[known].ask(strtoull(mib, NULL, 10) << 20);
			printf("%s %s %s\n", way, mib, fault ? strerrorname_np((int)fault) : "allocated");
			fflush(stdout);
		}
	}
	return 0;
}
