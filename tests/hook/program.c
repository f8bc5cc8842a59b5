/* Allocate more VRAM than the lease has, through each way in which a program can come to call ioctl().
 * Prints "denied" or "allocated". Built by the tests against glibc and musl, dynamically and statically. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

struct alloc {
	uint64_t address, size, handle, mmap_offset;
	uint32_t gpu_id, flags;
};

#define ALLOC 0xc0284b16u

typedef int (*call)(int, unsigned long, ...);

static int by_syscall(int fd, unsigned long request, ...)
{
	__builtin_va_list rest;
	__builtin_va_start(rest, request);
	return (int)syscall(SYS_ioctl, fd, request, __builtin_va_arg(rest, void *));
}

#ifdef PLUGIN
int plugin_ioctl(int fd, unsigned long request, void *argument)
{
	return ioctl(fd, request, argument);
}
#else
/* A pointer in data is bound when the program is loaded, not when it is called. */
static const struct {
	void *function;
} table[] = { { (void *)ioctl } };

static call found(const char *way, const char *plugin)
{
	if (!strcmp(way, "plt"))
		return (call)ioctl;
	if (!strcmp(way, "table"))
		return (call)table[0].function;
	if (!strcmp(way, "syscall"))
		return by_syscall;
#ifndef STATIC
	if (!strcmp(way, "dlsym_default"))
		return (call)dlsym(RTLD_DEFAULT, "ioctl");
	if (!strcmp(way, "dlsym_handle"))
		return (call)dlsym(dlopen(LIBC, RTLD_NOW), "ioctl");
#ifdef __GLIBC__
	if (!strcmp(way, "dlvsym"))
		return (call)dlvsym(dlopen(LIBC, RTLD_NOW), "ioctl", "GLIBC_2.2.5");
	if (!strcmp(way, "deepbind"))
		return (call)dlsym(dlopen(plugin, RTLD_NOW | RTLD_DEEPBIND), "plugin_ioctl");
	if (!strcmp(way, "dlmopen"))
		return (call)dlsym(dlmopen(LM_ID_NEWLM, plugin, RTLD_NOW), "plugin_ioctl");
#endif
#endif
	return NULL;
}

int main(int count, char **words)
{
	struct alloc alloc = { .size = 1 << 30, .gpu_id = 0x1000, .flags = 1 };
	int fd = open("/dev/kfd", O_RDWR);
	call function = count > 2 ? found(words[1], words[2]) : NULL;

	if (fd < 0 || !function) {
		fprintf(stderr, "no %s\n", fd < 0 ? "/dev/kfd" : words[1]);
		return 2;
	}
	if (!function(fd, ALLOC, &alloc))
		puts("allocated");
	else
		puts(errno == ENOMEM ? "denied" : strerror(errno));
	return 0;
}
#endif
