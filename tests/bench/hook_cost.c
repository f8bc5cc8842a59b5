/* What ioctl() costs here: prints nanoseconds per foreign ioctl and per allocation with its release, on a node. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>

struct alloc {
	uint64_t address, size, handle, mmap_offset;
	uint32_t gpu_id, flags;
};

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

int main(int count, char **words)
{
	const int rounds = count > 1 ? atoi(words[1]) : 1000;
	int fd = open(count > 2 ? words[2] : "/dev/kfd", O_RDWR), null = open("/dev/null", O_RDWR), unread;
	double began = now(), between;

	for (int i = 0; i < 100 * rounds; i++)
		ioctl(null, 0x541b, &unread);	/* FIONREAD */
	between = now();
	for (int i = 0; i < rounds; i++) {
		struct alloc alloc = { .size = 1 << 20, .gpu_id = 0x1000, .flags = 1 };

		ioctl(fd, 0xc0284b16, &alloc);
		ioctl(fd, 0x40084b17, &alloc.handle);
	}
	printf("%f %f\n", (between - began) / (100.0 * rounds), (now() - between) / rounds);
	return fd < 0;
}
