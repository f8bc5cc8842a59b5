/* Ask for more VRAM than the lease has, by each way in which a program can come to a call of ioctl().
 *
 * usage: program TARGET WAY      prints "denied" or "allocated"
 *
 * TARGET "ioctl": the way leads to ioctl() itself. "library": it leads to a function of libruntime.so, which calls
 * ioctl() by linkage, as ROCm's libraries do. STATIC: no dynamic linking at all. BARE: not linked to libruntime.so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

struct alloc {
	uint64_t address, size, handle, mmap_offset;
	uint32_t gpu_id, flags;
};

#define ALLOC 0xc0284b16u
#define GIB (1ul << 30)

typedef int (*call)(int, unsigned long, ...);

static int by_syscall(int fd, unsigned long request, ...)
{
	__builtin_va_list rest;

	__builtin_va_start(rest, request);
	return (int)syscall(SYS_ioctl, fd, request, __builtin_va_arg(rest, void *));
}

/* One for each target: a call by name (through the PLT, where there is one), the function's address in the global
 * offset table, and in data of our own, which is bound when the program is loaded. */
#define LINKED(function)									\
	static int function##_called(int fd, unsigned long request, ...)			\
	{											\
		__builtin_va_list rest;								\
												\
		__builtin_va_start(rest, request);						\
		return function(fd, request, __builtin_va_arg(rest, void *));			\
	}											\
	static void *volatile function##_table[] = { (void *)function };			\
												\
	static call function##_linked(const char *way)						\
	{											\
		if (!strcmp(way, "plt"))							\
			return function##_called;						\
		if (!strcmp(way, "got"))							\
			return (call)function;							\
		if (!strcmp(way, "table"))							\
			return (call)function##_table[0];					\
		return NULL;									\
	}

LINKED(ioctl)

#ifndef STATIC
/* By name in one library, whatever else defines it. */
static call looked_up(const char *way, const char *library, const char *function)
{
	if (!strcmp(way, "dlsym_default"))
		return (call)dlsym(RTLD_DEFAULT, function);
	if (!strcmp(way, "dlsym_handle"))
		return (call)dlsym(dlopen(library, RTLD_NOW), function);
#ifdef __GLIBC__
	if (!strcmp(way, "dlvsym"))
		return (call)dlvsym(dlopen(library, RTLD_NOW), function,
				    strcmp(function, "ioctl") ? "RUNTIME_1" : "GLIBC_2.2.5");
#endif
	return NULL;
}

/* In a library that is opened while the program runs, and calls the target by linkage. */
static call plugged_in(const char *way, const char *function)
{
	const char *plugin = "libplugin.so";

	if (!strcmp(way, "dlopen"))
		return (call)dlsym(dlopen(plugin, RTLD_NOW), function);
#ifdef __GLIBC__
	if (!strncmp(way, "deepbind", 8))
		return (call)dlsym(dlopen(plugin, RTLD_NOW | RTLD_DEEPBIND), function);
	if (!strcmp(way, "dlmopen"))
		return (call)dlsym(dlmopen(LM_ID_NEWLM, plugin, RTLD_NOW), function);
#endif
	return NULL;
}
#endif

#if !defined(STATIC) && !defined(BARE)
int runtime_call(int fd, unsigned long request, void *argument);
LINKED(runtime_call)
#else
#define runtime_call_linked(way) NULL
#endif

static call found(const char *target, const char *way)
{
	const int direct = !strcmp(target, "ioctl");
	call call = direct ? ioctl_linked(way) : runtime_call_linked(way);

	if (direct && !strcmp(way, "syscall"))
		return by_syscall;
#ifndef STATIC
	if (!call)
		call = looked_up(way, direct ? LIBC : "libruntime.so", direct ? "ioctl" : "runtime_call");
	if (!call)
		call = plugged_in(way, direct ? "plugin_ioctl" : "plugin_runtime");
#endif
	return call;
}

int main(int count, char **words)
{
	struct alloc alloc = { .size = GIB, .gpu_id = 0x1000, .flags = 1 };
	const int fd = open("/dev/kfd", O_RDWR);
	const call call = count == 3 ? found(words[1], words[2]) : NULL;

	if (fd < 0 || !call) {
		puts(fd < 0 ? "no /dev/kfd" : "no such way");
		return 2;
	}
	if (!call(fd, ALLOC, &alloc))
		puts("allocated");
	else
		puts(errno == ENOMEM ? "denied" : strerror(errno));
	return 0;
}
