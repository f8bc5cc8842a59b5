/* libruntime.so: calls ioctl() by linkage, as libhsakmt and libdrm do. */
#include <sys/ioctl.h>

int runtime_call(int fd, unsigned long request, void *argument)
{
	return ioctl(fd, request, argument);
}
