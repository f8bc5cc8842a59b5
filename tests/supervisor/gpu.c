// SPDX-License-Identifier: Apache-2.0
/*
 * A program that asks the GPU driver by raw system calls. Usage: gpu KFD RENDER GPU_ID STEP...; each step prints
 * NAME=ERRNO, or what it found. Steps: raw:CMD:SIZE int80:SIZE x32:SIZE fork:SIZE threads:N:SIZE svm:SIZE gem:SIZE
 * mask:HEX (one word) foreign dumb criu read.
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

struct allocation {
	uint64_t address, size, handle, mmap_offset;
	uint32_t gpu_id, flags;
};

static const char *kfd_path;
static int kfd, render;
static uint32_t gpu_id;
static uint64_t next_address = 0x7f0000000000;

static int result(long returned)
{
	return returned < 0 ? errno : 0;
}

static struct allocation vram(uint64_t size)
{
	struct allocation asked = { .size = size, .gpu_id = gpu_id, .flags = 1u | 1u << 31 };

	asked.address = __sync_fetch_and_add(&next_address, (size + 0x1fffff) & ~0x1fffffULL);
	return asked;
}

static int allocate(unsigned long command, uint64_t size)
{
	struct allocation asked = vram(size);

	return result(syscall(SYS_ioctl, kfd, command, &asked));
}

/* The structure must lie below 4 GiB for a 32-bit call. */
static int by_int80(uint64_t size)
{
	struct allocation *low = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	int returned;

	*low = vram(size);
	__asm__ volatile("int $0x80" : "=a"(returned)
			 : "a"(54), "b"(kfd), "c"(0xc0284b16u), "d"((unsigned int)(uintptr_t)low) : "memory");
	return returned < 0 ? -returned : 0;
}

static int by_x32(uint64_t size)
{
	struct allocation asked = vram(size);

	return result(syscall(0x40000000 + 514, kfd, 0xc0284b16ul, &asked));
}

/* A child has to open KFD for itself. */
static int by_fork(uint64_t size)
{
	int status;
	const pid_t pid = fork();

	if (!pid) {
		kfd = open(kfd_path, O_RDWR);
		_exit(allocate(0xc0284b16, size));
	}
	waitpid(pid, &status, 0);
	return WEXITSTATUS(status);
}

static uint64_t thread_size;

static void *one_thread(void *granted)
{
	for (int i = 0; i < 8; i++)
		if (!allocate(0xc0284b16, thread_size))
			__sync_fetch_and_add((int *)granted, 1);
	return NULL;
}

static int by_threads(int count, uint64_t size)
{
	pthread_t threads[32];
	int granted = 0;

	thread_size = size;
	for (int i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, one_thread, &granted);
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	return granted;
}

static int share(uint64_t size)
{
	void *memory = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct {
		uint64_t start, size;
		uint32_t operation, count, type, value;
	} asked = { (uintptr_t)memory, size, 0, 1, 0, gpu_id };
	const int fault = result(syscall(SYS_ioctl, kfd, 0xc0204b20ul, &asked));

	if (fault)
		munmap(memory, size);
	return fault;
}

static int buffer(uint64_t size)
{
	uint64_t asked[4] = { size, 4096, 4, 0 };

	return result(syscall(SYS_ioctl, render, 0xc0206440ul, asked));
}

static uint32_t set_mask(uint32_t mask, int *fault)
{
	struct {
		uint32_t queue, bits;
		uint64_t mask;
	} asked = { 0, 32, (uintptr_t)&mask };

	*fault = result(syscall(SYS_ioctl, kfd, 0x40104b1aul, &asked));
	return mask;
}

int main(int count, char **words)
{
	int fault;

	setvbuf(stdout, NULL, _IOLBF, 0);
	kfd_path = words[1];
	kfd = open(words[1], O_RDWR | O_CLOEXEC);
	render = open(words[2], O_RDWR | O_CLOEXEC);
	gpu_id = (uint32_t)atoi(words[3]);
	for (int i = 4; i < count; i++) {
		unsigned long a = 0, b = 0;
		char *name = strtok(words[i], ":"), *first = strtok(NULL, ":"), *second = strtok(NULL, ":");

		a = first ? strtoul(first, NULL, 0) : 0;
		b = second ? strtoul(second, NULL, 0) : 0;
		if (!strcmp(name, "raw"))
			printf("raw=%d\n", allocate(a, b));
		else if (!strcmp(name, "int80"))
			printf("int80=%d\n", by_int80(a));
		else if (!strcmp(name, "x32"))
			printf("x32=%d\n", by_x32(a));
		else if (!strcmp(name, "fork"))
			printf("fork=%d\n", by_fork(a));
		else if (!strcmp(name, "threads"))
			printf("threads=%d\n", by_threads((int)a, b));
		else if (!strcmp(name, "svm"))
			printf("svm=%d\n", share(a));
		else if (!strcmp(name, "gem"))
			printf("gem=%d\n", buffer(a));
		else if (!strcmp(name, "mask"))
			printf("mask=%08x\n", set_mask((uint32_t)a, &fault));
		else if (!strcmp(name, "criu"))
			printf("criu=%d\n", result(syscall(SYS_ioctl, kfd, 0xc0384b22ul, words)));
		else if (!strcmp(name, "dumb"))
			printf("dumb=%d\n", result(syscall(SYS_ioctl, render, 0xc02064b2ul, words)));
		else if (!strcmp(name, "foreign"))
			printf("foreign=%d\n", result(syscall(SYS_ioctl, 0, 0x5416ul, NULL)));
		else if (!strcmp(name, "read"))
			printf("read=%d\n", (int)read(0, &fault, 1));
	}
	return 0;
}
