// SPDX-License-Identifier: GPL-2.0
/*
 * fakegpu - the ioctls by which ROCm and graphics get VRAM, as far as that goes: include/uapi/linux/kfd_ioctl.h,
 * include/uapi/drm/amdgpu_drm.h. What makes these calls on a real card makes them here, unchanged.
 *
 * As in the drivers, the direction and size in a request's number are the caller's affair: KFD looks at the number
 * alone, DRM at type and number, and what the caller did not send is zero.
 */

#include <linux/file.h>
#include <linux/ioctl.h>
#include <linux/minmax.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "fakegpu.h"

#define KFD_ACQUIRE_VM		0x15
#define KFD_ALLOC_MEMORY	0x16
#define KFD_FREE_MEMORY		0x17
#define KFD_AVAILABLE_MEMORY	0x23
#define KFD_VRAM		(1u << 0)

#define DRM_TYPE		'd'
#define DRM_GEM_CLOSE		0x09
#define DRM_GEM_CREATE		0x40
#define GEM_DOMAIN_VRAM		(1u << 2)

union fg_argument {
	struct {
		u32 drm_fd, gpu_id;
	} acquire;
	struct {
		u64 address, size, handle, mmap_offset;
		u32 gpu_id, flags;
	} alloc;
	struct {
		u64 handle;
	} free;
	struct {
		u64 available;
		u32 gpu_id, pad;
	} available;
	union {
		struct {
			u64 size, alignment, domains, flags;
		} in;
		struct {
			u32 handle, pad;
		} out;
	} create;
	struct {
		u32 handle, pad;
	} close;
};

static struct fg_gpu *fg_gpu_of(unsigned int gpu_id)
{
	int i;

	for (i = 0; i < fg_nr; i++)
		if (fg_gpus[i].gpu_id == gpu_id)
			return &fg_gpus[i];
	return NULL;
}

/* A buffer for @f, after which the fault "hang" may hold the caller. */
static long fg_ioctl_alloc(struct fg_file *f, struct fg_gpu *g, u64 size)
{
	long id;

	mutex_lock(&fg_lock);
	id = fg_alloc(f, g, size);
	mutex_unlock(&fg_lock);
	if (id >= 0)
		fg_hang_after_alloc();
	return id;
}

static long fg_ioctl_drop(struct fg_file *f, u64 handle)
{
	long ret;

	mutex_lock(&fg_lock);
	ret = handle == (u32)handle ? fg_drop(f, handle, false) : -ENOENT;
	mutex_unlock(&fg_lock);
	return ret ? -EINVAL : 0;
}

/* KFD knows a process on a GPU only once that has shown it the GPU's render node. */
static long fg_acquire(struct fg_file *f, union fg_argument *a)
{
	struct fg_gpu *g = fg_gpu_of(a->acquire.gpu_id);
	struct file *render = fget(a->acquire.drm_fd);
	long ret = g && render && fg_render_gpu(render) == g ? 0 : -EINVAL;

	if (!ret) {
		mutex_lock(&fg_lock);
		f->acquired |= BIT(g - fg_gpus);
		mutex_unlock(&fg_lock);
	}
	if (render)
		fput(render);
	return ret;
}

static long fg_kfd_alloc(struct fg_file *f, union fg_argument *a)
{
	struct fg_gpu *g = fg_gpu_of(a->alloc.gpu_id);
	long id;

	if (!g || !(a->alloc.flags & KFD_VRAM))
		return -EINVAL;
	if (!(READ_ONCE(f->acquired) & BIT(g - fg_gpus)))
		return -ENODEV;
	id = fg_ioctl_alloc(f, g, a->alloc.size);
	if (id < 0)
		return id;
	a->alloc.handle = id;
	return 0;
}

/* The whole card's, whatever the caller's cgroup may have: KFD knows nothing of dmem. */
static long fg_kfd_available(union fg_argument *a)
{
	struct fg_gpu *g = fg_gpu_of(a->available.gpu_id);

	if (!g)
		return -EINVAL;
	mutex_lock(&fg_lock);
	a->available.available = g->size - g->used;
	mutex_unlock(&fg_lock);
	return 0;
}

static long fg_kfd_do(struct fg_file *f, unsigned int number, union fg_argument *a)
{
	switch (number) {
	case KFD_ACQUIRE_VM:
		return fg_acquire(f, a);
	case KFD_ALLOC_MEMORY:
		return fg_kfd_alloc(f, a);
	case KFD_FREE_MEMORY:
		return fg_ioctl_drop(f, a->free.handle);
	case KFD_AVAILABLE_MEMORY:
		return fg_kfd_available(a);
	}
	return -EINVAL;
}

static long fg_render_do(struct fg_file *f, unsigned int number, union fg_argument *a)
{
	long id;

	switch (number) {
	case DRM_GEM_CLOSE:
		return fg_ioctl_drop(f, a->close.handle);
	case DRM_GEM_CREATE:
		if (a->create.in.domains != GEM_DOMAIN_VRAM)
			return -EINVAL;
		id = fg_ioctl_alloc(f, f->gpu, a->create.in.size);
		if (id < 0)
			return id;
		a->create.out.handle = id;
		a->create.out.pad = 0;
		return 0;
	}
	return -EINVAL;
}

static long fg_ioctl(struct file *file, unsigned int cmd, unsigned long arg,
		     long (*act)(struct fg_file *f, unsigned int number, union fg_argument *a))
{
	size_t size = min_t(size_t, _IOC_SIZE(cmd), sizeof(union fg_argument));
	union fg_argument argument;
	long ret;

	memset(&argument, 0, sizeof(argument));
	if (copy_from_user(&argument, (void __user *)arg, size))
		return -EFAULT;
	ret = act(file->private_data, _IOC_NR(cmd), &argument);
	if (!ret && copy_to_user((void __user *)arg, &argument, size))
		return -EFAULT;
	return ret;
}

long fg_kfd_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	return fg_ioctl(file, cmd, arg, fg_kfd_do);
}

long fg_render_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	return _IOC_TYPE(cmd) == DRM_TYPE ? fg_ioctl(file, cmd, arg, fg_render_do) : -ENOTTY;
}
