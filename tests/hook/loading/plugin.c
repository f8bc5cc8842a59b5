/* libplugin.so: opened by the running program, as a module of an interpreter is. It needs libruntime.so and libc. */
#include <sys/ioctl.h>

int runtime_call(int fd, unsigned long request, void *argument);

int plugin_ioctl(int fd, unsigned long request, void *argument)
{
	return ioctl(fd, request, argument);
}

int plugin_runtime(int fd, unsigned long request, void *argument)
{
	return runtime_call(fd, request, argument);
}
