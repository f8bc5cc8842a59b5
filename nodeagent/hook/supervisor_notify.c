// SPDX-License-Identifier: Apache-2.0
/*
 * One notification: whom and what it is about, then "go on" or an errno. What was read of a program's memory counts
 * only if its notification is alive afterwards, so that a recycled number is nobody's. What it cannot find out, it
 * refuses.
 */
#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include "kfd.h"
#include "priority.h"
#include "supervisor_ioctls.h"

#define DRM_MAJOR 226
#define MOST_BYTES 128			/* read at a time of another's memory */
#define MOST_ATTRIBUTES 256
#define PAGE_MASK 4095u

static bool alive(const struct supervised *lease, const struct seccomp_notif *call)
{
	return !ioctl(lease->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &call->id);
}

/* 0, or the errno that the caller gets: as from the kernel where the address is wrong. */
static int read_caller(const struct supervised *lease, const struct seccomp_notif *call, uint64_t address,
		       void *to, size_t size)
{
	for (size_t done = 0; done < size;) {
		const size_t part = size - done < MOST_BYTES ? size - done : MOST_BYTES;
		const struct iovec local = { (char *)to + done, part };
		const struct iovec remote = { (void *)(uintptr_t)(address + done), part };

		if (process_vm_readv((pid_t)call->pid, &local, 1, &remote, 1, 0) != (ssize_t)part)
			return EFAULT;
		done += part;
	}
	return alive(lease, call) ? 0 : ESRCH;
}

/* By /proc/<thread>/mem: that descriptor stays with the memory it was opened for, and a mask may be constant. */
static int write_caller(const struct supervised *lease, const struct seccomp_notif *call, uint64_t address,
			const void *from, size_t size)
{
	char path[64];
	int memory, fault = 0;

	snprintf(path, sizeof(path), "/proc/%u/mem", call->pid);
	memory = open(path, O_WRONLY | O_CLOEXEC);
	if (memory < 0)
		return EFAULT;
	if (!alive(lease, call))
		fault = ESRCH;
	else if (pwrite(memory, from, size, (off_t)address) != (ssize_t)size)
		fault = EFAULT;
	close(memory);
	return fault;
}

/*
 * The arguments as the driver will have them: what the request claims not to hold is 0. KFD takes the claimed size
 * alone (kfd_ioctl), DRM also asks that the request's direction says "in" (drm_ioctl).
 */
static int read_claimed(const struct supervised *lease, const struct seccomp_notif *call, size_t claimed, void *to,
			size_t size)
{
	const size_t copied = claimed < size ? claimed : size;

	memset(to, 0, size);
	return read_caller(lease, call, call->data.args[2], to, copied);
}

static int read_kfd(const struct supervised *lease, const struct seccomp_notif *call, void *to, size_t size)
{
	return read_claimed(lease, call, _IOC_SIZE(call->data.args[1]), to, size);
}

static int read_drm(const struct supervised *lease, const struct seccomp_notif *call, void *to, size_t size)
{
	const bool in = call->data.args[1] & IOC_IN;

	return read_claimed(lease, call, in ? _IOC_SIZE(call->data.args[1]) : 0, to, size);
}

/* Drivers give whole pages: many tiny buffers must not be counted as what they ask for. */
static uint64_t whole_pages(uint64_t size)
{
	return size > UINT64_MAX - PAGE_MASK ? UINT64_MAX : (size + PAGE_MASK) & ~(uint64_t)PAGE_MASK;
}

static int by_gpu(const struct supervised *lease, uint32_t gpu_id)
{
	for (uint32_t i = 0; i < lease->limits.devices; i++)
		if (lease->limits.device[i].gpu_id == gpu_id)
			return (int)i;
	return -1;
}

static int by_minor(const struct supervised *lease, uint32_t render_minor)
{
	for (uint32_t i = 0; i < lease->limits.devices; i++)
		if (lease->limits.device[i].render_minor == render_minor)
			return (int)i;
	return -1;
}

static int allocate(struct supervised *lease, const struct seccomp_notif *call, pid_t process)
{
	struct kfd_alloc_memory asked;
	int device, fault = read_kfd(lease, call, &asked, sizeof(asked));

	if (fault || !(asked.flags & ALLOC_VRAM))
		return fault;
	device = by_gpu(lease, asked.gpu_id);
	if (asked.flags & ALLOC_AQL_QUEUE)
		asked.size = asked.size / 2 + asked.size % 2;
	if (device < 0 || !account_take(lease, (uint32_t)device, process, (pid_t)call->pid, whole_pages(asked.size),
					CHARGE_COUNTED))
		return ENOMEM;
	return 0;
}

static bool names_place(uint32_t type)
{
	return type == SVM_PREFERRED_LOCATION || type == SVM_PREFETCH_LOCATION || type == SVM_ACCESS ||
	       type == SVM_ACCESS_IN_PLACE;
}

/* A location may be system memory, or none: kfd_ioctl.h, KFD_IOCTL_SVM_LOCATION_*. */
static bool is_no_gpu(const struct kfd_svm_attribute *attribute)
{
	return (attribute->type == SVM_PREFERRED_LOCATION || attribute->type == SVM_PREFETCH_LOCATION) &&
	       (attribute->value == 0 || attribute->value == UINT32_MAX);
}

/* A range that is given a GPU as its place, or that a GPU may reach, may move there as a whole. */
static int share(struct supervised *lease, const struct seccomp_notif *call, pid_t process)
{
	struct kfd_svm asked;
	struct kfd_svm_attribute attributes[MOST_ATTRIBUTES];
	int fault = read_kfd(lease, call, &asked, sizeof(asked));

	if (fault || asked.operation != SVM_SET_ATTRIBUTES)
		return fault;
	if (asked.attributes > MOST_ATTRIBUTES)
		return E2BIG;
	/* Attributes that the request claims not to hold: new kernels refuse them, old ones read what lies there. */
	if (_IOC_SIZE(call->data.args[1]) < sizeof(asked) + asked.attributes * sizeof(*attributes))
		return EINVAL;
	fault = read_caller(lease, call, call->data.args[2] + sizeof(asked), attributes,
			    asked.attributes * sizeof(*attributes));
	for (uint32_t i = 0; !fault && i < asked.attributes; i++) {
		const int device = by_gpu(lease, attributes[i].value);

		if (!names_place(attributes[i].type) || is_no_gpu(&attributes[i]))
			continue;
		/* A GPU that is not leased gets nothing, here as in allocate(). */
		if (device < 0 || !account_range(lease, (uint32_t)device, process, asked.start, asked.size))
			fault = ENOMEM;
	}
	return fault;
}

static int create_buffer(struct supervised *lease, const struct seccomp_notif *call, pid_t process, uint32_t node)
{
	union drm_gem_create asked;
	int device, fault = read_drm(lease, call, &asked, sizeof(asked.in));

	if (fault || !(asked.in.domains & GEM_DOMAIN_VRAM))
		return fault;
	device = by_minor(lease, node);	/* a primary node is none of the lease's: no VRAM by it */
	if (device < 0 || !account_take(lease, (uint32_t)device, process, (pid_t)call->pid,
					whole_pages(asked.in.size), CHARGE_UNCOUNTED))
		return ENOMEM;
	return 0;
}

/* A buffer that was made in system memory was not charged, so it stays there. */
static int change_buffer(struct supervised *lease, const struct seccomp_notif *call)
{
	struct drm_gem_op asked;
	const int fault = read_drm(lease, call, &asked, sizeof(asked));

	if (fault || asked.operation != GEM_OP_SET_PLACEMENT)
		return fault;
	return asked.value & GEM_DOMAIN_VRAM ? EPERM : 0;
}

/* KFD tells a queue's GPU in kfd/proc/<pid>/queues/<id>/gpuid; with one device in the lease there is no question. */
static int device_of_queue(const struct supervised *lease, pid_t process, uint32_t queue)
{
	char path[512];
	uint64_t gpu_id;

	snprintf(path, sizeof(path), "%s/%d/queues/%u/gpuid", lease->kfd_processes, process, queue);
	gpu_id = proc_number(path);
	if (gpu_id)
		return by_gpu(lease, (uint32_t)gpu_id);
	return lease->limits.devices == 1 ? 0 : -1;
}

static bool any_bit(const uint32_t *words, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (words[i])
			return true;
	return false;
}

/* Rewrite the mask in the caller's memory. One that is too short to name a leased CU would be empty: refused. */
static int set_mask(struct supervised *lease, const struct seccomp_notif *call, pid_t process)
{
	struct kfd_set_cu_mask asked;
	uint32_t wanted[MASK_WORDS] = { 0 }, granted[MASK_WORDS], bytes;
	int device, fault = read_kfd(lease, call, &asked, sizeof(asked));

	if (fault)
		return fault;
	device = device_of_queue(lease, process, asked.queue_id);
	if (device < 0)
		return EINVAL;
	if (!lease->limits.device[device].mask_bits)
		return 0;
	if (!asked.bits || asked.bits % 32)
		return EINVAL;
	if (asked.bits > MASK_WORDS * 32)
		asked.bits = MASK_WORDS * 32;	/* as KFD does */
	bytes = asked.bits / 8;
	fault = read_caller(lease, call, asked.mask, wanted, bytes);
	if (fault)
		return fault;
	cumask_map(&lease->limits.device[device], wanted, asked.bits, granted);
	if (!any_bit(granted, asked.bits / 32))
		return EINVAL;
	return memcmp(wanted, granted, bytes) ? write_caller(lease, call, asked.mask, granted, bytes) : 0;
}

/* Rewrite the priority in the caller's memory, `offset` into the structure. */
static int set_priority(struct supervised *lease, const struct seccomp_notif *call, int device, uint32_t asked,
			size_t offset)
{
	uint32_t granted = asked;

	if (device >= 0)
		granted = priority_within(&lease->limits.device[device], asked);
	return granted == asked ? 0 :
				  write_caller(lease, call, call->data.args[2] + offset, &granted, sizeof(granted));
}

static int create_queue(struct supervised *lease, const struct seccomp_notif *call)
{
	struct kfd_create_queue asked;
	const int fault = read_kfd(lease, call, &asked, sizeof(asked));

	return fault ? fault : set_priority(lease, call, by_gpu(lease, asked.gpu_id), asked.priority,
					    offsetof(struct kfd_create_queue, priority));
}

static int update_queue(struct supervised *lease, const struct seccomp_notif *call, pid_t process)
{
	struct kfd_update_queue asked;
	const int fault = read_kfd(lease, call, &asked, sizeof(asked));

	return fault ? fault : set_priority(lease, call, device_of_queue(lease, process, asked.queue_id),
					    asked.priority, offsetof(struct kfd_update_queue, priority));
}

static bool same_file(const struct file_identity *file, const struct stat *status)
{
	if (!file->known)
		return false;
	if (file->device)
		return S_ISCHR(status->st_mode) && status->st_rdev == file->number;
	return status->st_dev == file->number && status->st_ino == file->inode;
}

static bool render_minor(const struct supervised *lease, const struct stat *status, uint32_t *node)
{
	for (size_t i = 0; i < lease->renders; i++) {
		*node = lease->render[i].minor;
		if (same_file(&lease->render[i].file, status))
			return true;
	}
	*node = minor(status->st_rdev);
	return S_ISCHR(status->st_mode) && major(status->st_rdev) == DRM_MAJOR;
}

static int decide(struct supervised *lease, const struct seccomp_notif *call)
{
	const uint32_t number = IOCTL_NUMBER(call->data.args[1]);
	struct stat status;
	pid_t process;
	uint32_t node;

	if (call->data.arch == AUDIT_ARCH_X86_64 && (uint32_t)call->data.nr & X32_BIT)
		return ENOSYS;		/* its addresses are not what the driver reads; containers' filters let it come */
	account_returned((pid_t)call->pid);
	if (!proc_look_at(lease, (pid_t)call->pid, (int)call->data.args[0], &process, &status))
		return errno == ENOENT ? EBADF : errno;
	if (same_file(&lease->kfd, &status)) {
		switch (number) {
		case KFD_ALLOC_MEMORY: return allocate(lease, call, process);
		case KFD_CREATE_QUEUE: return create_queue(lease, call);
		case KFD_UPDATE_QUEUE: return update_queue(lease, call, process);
		case KFD_SVM: return share(lease, call, process);
		case KFD_SET_CU_MASK: return set_mask(lease, call, process);
		case KFD_CRIU: return EPERM;
		case KFD_CREATE_PROCESS: return account_contexts(lease, process) ? 0 : ENOMEM;
		case KFD_EXPORT_DMABUF:
		case KFD_IPC_EXPORT: return account_export(lease, process) ? 0 : ENOMEM;
		}
	} else if (render_minor(lease, &status, &node)) {
		switch (number) {
		case DRM_AMDGPU_GEM_CREATE: return create_buffer(lease, call, process, node);
		case DRM_AMDGPU_GEM_OP: return change_buffer(lease, call);
		case DRM_CREATE_DUMB: return EPERM;
		}
	}
	return 0;
}

/* The kernel may have grown its structures: then this program is too old to answer. */
bool notify_sizes_fit(void)
{
	struct seccomp_notif_sizes sizes;

	return !syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes) &&
	       sizes.seccomp_notif == sizeof(struct seccomp_notif) &&
	       sizes.seccomp_notif_resp == sizeof(struct seccomp_notif_resp);
}

bool notify_answer(struct supervised *lease)
{
	struct seccomp_notif call = { 0 };
	struct seccomp_notif_resp answer = { 0 };

	if (ioctl(lease->listener, SECCOMP_IOCTL_NOTIF_RECV, &call))
		return errno == EINTR || errno == ENOENT;	/* ENOENT: the caller was killed meanwhile */
	answer.id = call.id;
	answer.error = -decide(lease, &call);
	if (!answer.error)
		answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
	ioctl(lease->listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);	/* gone meanwhile: nobody to tell */
	return true;
}
