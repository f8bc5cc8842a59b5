// SPDX-License-Identifier: Apache-2.0
/* ioctl_loop FILE GPU_ID COUNT: nanoseconds a call, of an allocation's ioctl and of one that nobody is asked about. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double each(int file, unsigned long request, void *asked, long count)
{
	struct timespec from, to;

	clock_gettime(CLOCK_MONOTONIC, &from);
	for (long i = 0; i < count; i++)
		syscall(SYS_ioctl, file, request, asked);
	clock_gettime(CLOCK_MONOTONIC, &to);
	return ((to.tv_sec - from.tv_sec) * 1e9 + (to.tv_nsec - from.tv_nsec)) / count;
}

int main(int words, char **word)
{
	struct { uint64_t address, size, handle, offset; uint32_t gpu_id, flags; } asked = { .size = 4096, .flags = 1 };
	const int file = words == 4 ? open(word[1], O_RDWR) : -1;

	if (file < 0)
		return 2;
	asked.gpu_id = (uint32_t)atoi(word[2]);
	printf("%.0f %.0f\n", each(file, 0xc0284b16, &asked, atol(word[3])),
	       each(file, 0xc0144b01, &asked, atol(word[3])));
	return 0;
}
