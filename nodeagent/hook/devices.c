// SPDX-License-Identifier: Apache-2.0
/* Which device of the lease a GPU id or an open file means. */
#include "hook.h"

#define MODE_TYPE 0170000u
#define MODE_CHARACTER 0020000u
#define DRM_MAJOR 226u
#define FIRST_RENDER_MINOR 128u
#define RENDER_PATH "/dev/dri/renderD"
#define RENDER_PATH_SIZE (sizeof(RENDER_PATH) - 1)

static uint32_t major_of(uint64_t rdev)
{
	return (uint32_t)(rdev >> 8 & 0xfff) | (uint32_t)(rdev >> 32 & ~0xfffu);
}

static uint32_t minor_of(uint64_t rdev)
{
	return (uint32_t)(rdev & 0xff) | (uint32_t)(rdev >> 12 & ~0xffu);
}

static int is_character(const struct kernel_stat *status)
{
	return (status->mode & MODE_TYPE) == MODE_CHARACTER;
}

/*
 * Whether the descriptor is of /dev/kfd. KFD's major is given at boot, so the node itself is compared: by device
 * number, or, where a stand-in in user space is no device, by file.
 */
int is_kfd(int fd)
{
	struct kernel_stat file, node;

	if (sys_fstat(fd, &file) || sys_stat("/dev/kfd", &node))
		return 0;
	if (is_character(&file) && is_character(&node))
		return file.rdev == node.rdev;
	return file.device == node.device && file.inode == node.inode;
}

/* A stand-in in user space is a plain file: its name tells. -1: it is none. */
static int64_t render_minor_of_name(int fd)
{
	char path[48], name[48], *at = path;
	uint32_t minor = 0;
	long size;

	at = text_append(at, path + sizeof(path), "/proc/self/fd/");
	text_append_number(at, path + sizeof(path), (uint64_t)fd);
	size = sys_readlink(path, name, sizeof(name) - 1);
	if (size <= (long)RENDER_PATH_SIZE || !text_equal(name, RENDER_PATH, RENDER_PATH_SIZE))
		return -1;
	for (long i = RENDER_PATH_SIZE; i < size; i++) {
		if (name[i] < '0' || name[i] > '9' || minor > 1u << 20)
			return -1;
		minor = minor * 10 + (uint32_t)(name[i] - '0');
	}
	return minor;
}

/* Whether the descriptor is of a DRM node, whosever; stand-ins are known by their names. */
int is_drm(int fd)
{
	struct kernel_stat status;

	if (fd < 0 || sys_fstat(fd, &status))
		return 0;
	if (is_character(&status))
		return major_of(status.rdev) == DRM_MAJOR;
	return render_minor_of_name(fd) >= 0;
}

int device_of_gpu(const struct limits *limits, uint32_t gpu_id)
{
	for (uint32_t device = 0; device < limits->devices; device++)
		if (limits->device[device].gpu_id == gpu_id)
			return (int)device;
	return -1;
}

static int device_of_render(const struct limits *limits, uint32_t minor)
{
	for (uint32_t device = 0; device < limits->devices; device++)
		if (limits->device[device].render_minor == minor)
			return (int)device;
	return -1;
}

/* A primary node (cardN): sysfs names the render node of the same device beside it. */
static int device_of_card(const struct limits *limits, uint32_t minor)
{
	for (uint32_t device = 0; device < limits->devices; device++) {
		struct kernel_stat status;
		char path[96], *at = path;
		const char *end = path + sizeof(path);

		at = text_append(at, end, "/sys/dev/char/226:");
		at = text_append_number(at, end, minor);
		at = text_append(at, end, "/device/drm/renderD");
		text_append_number(at, end, limits->device[device].render_minor);
		if (!sys_stat(path, &status))
			return (int)device;
	}
	return -1;
}

/* The device of the lease behind an open DRM node, or -1. */
int device_of_file(const struct limits *limits, int fd)
{
	struct kernel_stat status;
	uint32_t minor;

	if (fd < 0 || sys_fstat(fd, &status))
		return -1;
	if (!is_character(&status)) {
		const int64_t named = render_minor_of_name(fd);

		return named < 0 ? -1 : device_of_render(limits, (uint32_t)named);
	}
	if (major_of(status.rdev) != DRM_MAJOR)
		return -1;
	minor = minor_of(status.rdev);
	return minor >= FIRST_RENDER_MINOR ? device_of_render(limits, minor) : device_of_card(limits, minor);
}
