/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linux system calls without a C library, so that one file loads beside every glibc and musl.
 * Every function returns what the kernel does: a negative errno on failure. The newer of two calls is made: a
 * program's own seccomp filter allows what its C library calls.
 */
#ifndef GPULEASE_SYSCALLS_H
#define GPULEASE_SYSCALLS_H

#ifndef __x86_64__
#error "x86-64 only: elsewhere the hook's tier is absent"
#endif

#include <asm/unistd.h>
#include <linux/errno.h>
#include <linux/fcntl.h>
#include <linux/futex.h>
#include <linux/mman.h>
#include <linux/stat.h>
#include <linux/time.h>
#include <stddef.h>
#include <stdint.h>

#ifndef MADV_WIPEONFORK		/* headers before Linux 4.14 */
#define MADV_WIPEONFORK 18
#endif
#define SIG_SETMASK 2
#define CLOCK_MONOTONIC 1
#define SIGPIPE 13
#define SIGXFSZ 25
#define POLLOUT 4
#define SIGNAL_BIT(signal) (1ULL << ((signal) - 1))
/* SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGSYS: where these are blocked the kernel asks no handler, and kills. */
#define FAULTS \
	(SIGNAL_BIT(4) | SIGNAL_BIT(5) | SIGNAL_BIT(7) | SIGNAL_BIT(8) | SIGNAL_BIT(11) | SIGNAL_BIT(31))
#define SIGNALS_KEPT_OUT (~FAULTS)

/* asm/stat.h clashes with C libraries' macros in editors; this is its x86-64 layout. */
struct kernel_stat {
	uint64_t device, inode, links;
	uint32_t mode, uid, gid, pad;
	uint64_t rdev;
	int64_t size, block_size, blocks;
	uint64_t times[6];
	int64_t unused[3];
};

/* struct flock of the 64-bit ABI, which the OFD commands take too */
struct kernel_flock {
	int16_t type, whence;
	int64_t start, length;
	int32_t pid;
};

static inline long syscall6(long nr, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

static inline long syscall4(long nr, long a, long b, long c, long d)
{
	register long r10 __asm__("r10") = d;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return result;
}

static inline int is_error(long result)
{
	return result < 0 && result >= -4095;
}

static inline long sys_ioctl(int fd, unsigned long request, void *argument)
{
	return syscall4(__NR_ioctl, fd, (uint32_t)request, (long)argument, 0);
}

static inline long sys_open(const char *path, int flags)
{
	return syscall4(__NR_openat, AT_FDCWD, (long)path, flags | O_CLOEXEC, 0);
}

static inline long sys_close(int fd)
{
	return syscall4(__NR_close, fd, 0, 0, 0);
}

static inline long sys_read(int fd, void *to, size_t size)
{
	return syscall4(__NR_read, fd, (long)to, (long)size, 0);
}

static inline long sys_write(int fd, const void *from, size_t size)
{
	return syscall4(__NR_write, fd, (long)from, (long)size, 0);
}

static inline long sys_pread(int fd, void *to, size_t size, int64_t offset)
{
	return syscall4(__NR_pread64, fd, (long)to, (long)size, offset);
}

static inline long sys_pwrite(int fd, const void *from, size_t size, int64_t offset)
{
	return syscall4(__NR_pwrite64, fd, (long)from, (long)size, offset);
}

static inline long sys_fstat(int fd, struct kernel_stat *status)
{
	return syscall4(__NR_fstat, fd, (long)status, 0, 0);
}

static inline long sys_stat(const char *path, struct kernel_stat *status)
{
	return syscall4(__NR_newfstatat, AT_FDCWD, (long)path, (long)status, 0);
}

static inline long sys_readlink(const char *path, char *to, size_t size)
{
	return syscall4(__NR_readlinkat, AT_FDCWD, (long)path, (long)to, (long)size);
}

static inline long sys_fcntl(int fd, int command, void *argument)
{
	return syscall4(__NR_fcntl, fd, command, (long)argument, 0);
}

/* New private memory, all zero. NULL when there is none. */
static inline void *map_memory(size_t size)
{
	long at = syscall6(__NR_mmap, 0, (long)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return is_error(at) ? NULL : (void *)at;
}

static inline void unmap_memory(void *memory, size_t size)
{
	if (memory)
		syscall4(__NR_munmap, (long)memory, (long)size, 0, 0);
}

static inline long sys_madvise(void *memory, size_t size, int advice)
{
	return syscall4(__NR_madvise, (long)memory, (long)size, advice, 0);
}

static inline uint64_t now_nanoseconds(void)
{
	int64_t time[2];

	syscall4(__NR_clock_gettime, CLOCK_MONOTONIC, (long)time, 0, 0);
	return (uint64_t)time[0] * 1000000000u + (uint64_t)time[1];
}

static inline void sleep_nanoseconds(int64_t nanoseconds)
{
	int64_t time[2] = { nanoseconds / 1000000000, nanoseconds % 1000000000 };

	syscall4(__NR_nanosleep, (long)time, 0, 0, 0);
}

#endif
