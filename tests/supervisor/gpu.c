// SPDX-License-Identifier: Apache-2.0
/*
 * A program that asks the GPU driver by raw system calls. Usage: gpu KFD RENDER GPU_ID STEP...; a step is NAME,
 * NAME:A or NAME:A:B, and prints NAME=ERRNO, or what it found. The steps are in the table at the end; after "leave"
 * the process's first thread has ended, and another goes on.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALLOCATE 0xc0284b16ul
#define VRAM (1u | 1u << 31)
#define AQL_QUEUE (1u << 27)		/* the memory is half of the size */

struct allocation {
	uint64_t address, size, handle, mmap_offset;
	uint32_t gpu_id, flags;
	char more[1 << 14];		/* a request may claim up to 16 KiB */
};

static const char *kfd_path;
static int kfd, render;
static uint32_t gpu_id;
static uint64_t next_address = 0x7f0000000000, last_handle;

static long result(long returned)
{
	return returned < 0 ? errno : 0;
}

static void fill(struct allocation *asked, uint64_t size, uint32_t flags)
{
	*asked = (struct allocation){ .size = size, .gpu_id = gpu_id, .flags = flags };
	asked->address = __sync_fetch_and_add(&next_address, (size + 0x1fffff) & ~0x1fffffULL);
}

static long allocate(unsigned long command, uint64_t size, uint32_t flags)
{
	struct allocation asked;
	long fault;

	fill(&asked, size, flags);
	fault = result(syscall(SYS_ioctl, kfd, command, &asked));
	if (!fault)
		last_handle = asked.handle;
	return fault;
}

static long raw(unsigned long command, unsigned long size)
{
	return allocate(command, size, VRAM);
}

static long aql(unsigned long command, unsigned long size)
{
	return allocate(command, size, VRAM | AQL_QUEUE);
}

static long release(unsigned long a, unsigned long b)
{
	(void)a, (void)b;
	return result(syscall(SYS_ioctl, kfd, 0x40084b17ul, &last_handle));
}

static long export(unsigned long command, unsigned long b)
{
	uint64_t asked[4] = { last_handle };

	(void)b;
	return result(syscall(SYS_ioctl, kfd, command ? command : 0xc0104b24ul, asked));
}

/* The structure must lie below 4 GiB for a 32-bit call. */
static void *low_page(void)
{
	return mmap(NULL, 1 << 15, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
}

static long by_int80(unsigned long size, unsigned long b)
{
	struct allocation *low = low_page();
	int returned;

	(void)b;
	fill(low, size, VRAM);
	__asm__ volatile("int $0x80" : "=a"(returned)
			 : "a"(54), "b"(kfd), "c"((uint32_t)ALLOCATE), "d"((unsigned int)(uintptr_t)low) : "memory");
	return returned < 0 ? -returned : 0;
}

static long by_x32(unsigned long size, unsigned long b)
{
	struct allocation asked;

	(void)b;
	fill(&asked, size, VRAM);
	return result(syscall(0x40000000 + 514, kfd, ALLOCATE, &asked));
}

static long buffer(unsigned long size, unsigned long command)
{
	uint64_t asked[4] = { size, 4096, 4, 0 };

	return result(syscall(SYS_ioctl, render, command ? command : 0xc0206440ul, asked));
}

/* Give the buffer 1 new domains: 2 is system memory, 4 VRAM. */
static long place(unsigned long domains, unsigned long b)
{
	struct {
		uint32_t handle, operation;
		uint64_t value;
	} asked = { 1, 1, domains };

	(void)b;
	return result(syscall(SYS_ioctl, render, 0xc0106450ul, &asked));
}

/* What a child that ends gets; for KFD it has to open the device for itself. */
static long in_child(long (*step)(unsigned long, unsigned long), unsigned long a, unsigned long b)
{
	int status;
	const pid_t pid = fork();

	if (!pid) {
		kfd = open(kfd_path, O_RDWR);
		_exit((int)step(a, b));
	}
	waitpid(pid, &status, 0);
	return WEXITSTATUS(status);
}

static long by_fork(unsigned long size, unsigned long b)
{
	(void)b;
	return in_child(raw, ALLOCATE, size);
}

static long buffer_by_fork(unsigned long size, unsigned long b)
{
	(void)b;
	return in_child(buffer, size, 0);
}

static long allocate_and_export(unsigned long command, unsigned long size)
{
	const long fault = raw(command, size);

	return fault ? fault : export(0, 0);
}

static long export_by_fork(unsigned long size, unsigned long b)
{
	(void)b;
	return in_child(allocate_and_export, ALLOCATE, size);
}

/* Of `count` children the first half ask a page each, then the others `size`. How many got it; all stay to the end. */
static long family(unsigned long count, unsigned long size)
{
	int done[2], asked[2], status;
	long granted = 0;
	char fault;

	if (pipe(done) || pipe(asked))
		return -1;
	for (unsigned long i = 0; i < count; i++) {
		if (!fork()) {
			kfd = open(kfd_path, O_RDWR);
			fault = (char)raw(ALLOCATE, i < count / 2 ? 4096 : size);
			close(done[1]);
			if (write(asked[1], &fault, 1) == 1 && read(done[0], &fault, 1))
				_exit(1);
			_exit(0);
		}
		granted += read(asked[0], &fault, 1) == 1 && !fault;
	}
	close(done[1]);
	while (wait(&status) > 0)
		;
	return granted;
}

static uint64_t thread_size;

static void *one_thread(void *granted)
{
	for (int i = 0; i < 8; i++)
		if (!raw(ALLOCATE, thread_size))
			__sync_fetch_and_add((int *)granted, 1);
	return NULL;
}

static long by_threads(unsigned long count, unsigned long size)
{
	pthread_t threads[32];
	int granted = 0;

	thread_size = size;
	for (unsigned long i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, one_thread, &granted);
	for (unsigned long i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	return granted;
}

static long share(unsigned long size, unsigned long command)
{
	void *memory = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct {
		uint64_t start, size;
		uint32_t operation, count, type, value;
	} asked = { (uintptr_t)memory, size, 0, 1, 0, gpu_id };
	const long fault = result(syscall(SYS_ioctl, kfd, command ? command : 0xc0204b20ul, &asked));

	if (fault)
		munmap(memory, size);
	return fault;
}

/* What becomes of a mask; with a second word, of one that the driver finds only by the lower half of its address. */
static long set_mask(unsigned long mask, unsigned long command)
{
	uint32_t *low = low_page();
	struct {
		uint32_t queue, bits;
		uint64_t mask;
	} asked = { 0, 32, (uintptr_t)low | (command ? 0x7fff00000000 : 0) };

	*low = (uint32_t)mask;
	syscall(SYS_ioctl, kfd, command ? command : 0x40104b1aul, &asked);
	return *low;
}

/* The priority that the program's memory has after the call, of a new queue or of queue 0. */
static long queue_priority(unsigned long priority, unsigned long command)
{
	uint32_t made[24] = { [9] = gpu_id, [10] = 2, [11] = 100, [12] = (uint32_t)priority };
	uint32_t changed[6] = { [4] = 100, [5] = (uint32_t)priority };
	const int update = (command & 0xff) == 7;

	if (syscall(SYS_ioctl, kfd, command, update ? changed : made))
		return -errno;
	return update ? changed[5] : made[12];
}

static long context(unsigned long a, unsigned long b)
{
	(void)a, (void)b;
	return result(syscall(SYS_ioctl, kfd, 0x4b27ul, NULL));
}

static long restore(unsigned long a, unsigned long b)
{
	(void)a, (void)b;
	return result(syscall(SYS_ioctl, kfd, 0xc0384b22ul, &last_handle));
}

static long dumb(unsigned long a, unsigned long b)
{
	(void)a, (void)b;
	return result(syscall(SYS_ioctl, render, 0xc02064b2ul, &last_handle));
}

static long foreign(unsigned long a, unsigned long b)
{
	(void)a, (void)b;
	return result(syscall(SYS_ioctl, 0, 0x5416ul, NULL));
}

static long await_byte(unsigned long a, unsigned long b)
{
	char byte;

	(void)a, (void)b;
	return read(0, &byte, 1);
}

static void await_leaders_end(void)
{
	char path[32], text[256] = "";
	int file;

	snprintf(path, sizeof(path), "/proc/%d/maps", getpid());
	do {
		usleep(1000);
		file = open(path, O_RDONLY);
	} while (read(file, text, sizeof(text)) > 0 && !close(file));
	close(file);
}

static const struct step {
	const char *name, *format;
	long (*run)(unsigned long, unsigned long);
} steps[] = {
	{ "raw", "%s=%ld\n", raw },			/* COMMAND:SIZE */
	{ "aql", "%s=%ld\n", aql },			/* COMMAND:SIZE */
	{ "free", "%s=%ld\n", release },
	{ "export", "%s=%ld\n", export },		/* [COMMAND] */
	{ "int80", "%s=%ld\n", by_int80 },		/* SIZE */
	{ "x32", "%s=%ld\n", by_x32 },			/* SIZE */
	{ "fork", "%s=%ld\n", by_fork },		/* SIZE */
	{ "forkexport", "%s=%ld\n", export_by_fork },	/* SIZE */
	{ "forkgem", "%s=%ld\n", buffer_by_fork },	/* SIZE */
	{ "family", "%s=%ld\n", family },		/* COUNT:SIZE; how many allocations came about */
	{ "threads", "%s=%ld\n", by_threads },		/* COUNT:SIZE; how many allocations came about */
	{ "svm", "%s=%ld\n", share },			/* SIZE[:COMMAND] */
	{ "gem", "%s=%ld\n", buffer },			/* SIZE[:COMMAND] */
	{ "place", "%s=%ld\n", place },			/* DOMAINS */
	{ "mask", "%s=%08lx\n", set_mask },		/* WORD[:COMMAND] */
	{ "queue", "%s=%ld\n", queue_priority },	/* PRIORITY:COMMAND */
	{ "context", "%s=%ld\n", context },		/* what comes next is a further context's */
	{ "criu", "%s=%ld\n", restore },
	{ "dumb", "%s=%ld\n", dumb },
	{ "foreign", "%s=%ld\n", foreign },
	{ "read", "%s=%ld\n", await_byte },
};

static void *all_steps(void *words);

static void *after_leader(void *words)
{
	await_leaders_end();
	return all_steps(words);
}

/* The process's leader ends, and a thread that it leaves behind does the rest. */
__attribute__((noreturn)) static void leave(char **rest)
{
	pthread_t thread;

	pthread_create(&thread, NULL, after_leader, rest);
	pthread_exit(NULL);
}

static void *all_steps(void *words)
{
	for (char **word = words; *word; word++) {
		char *name = *word, *rest = strchr(name, ':');
		unsigned long a = 0, b = 0;

		if (rest) {
			*rest++ = '\0';
			a = strtoul(rest, &rest, 0);
			b = *rest ? strtoul(rest + 1, NULL, 0) : 0;
		}
		for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++)
			if (!strcmp(name, steps[i].name))
				printf(steps[i].format, name, steps[i].run(a, b));
		if (!strcmp(name, "leave"))
			leave(word + 1);
	}
	return NULL;
}

int main(int count, char **words)
{
	(void)count;
	setvbuf(stdout, NULL, _IOLBF, 0);
	kfd_path = words[1];
	kfd = open(words[1], O_RDWR | O_CLOEXEC);
	render = open(words[2], O_RDWR | O_CLOEXEC);
	gpu_id = (uint32_t)atoi(words[3]);
	all_steps(words + 4);
	return 0;
}
