// SPDX-License-Identifier: Apache-2.0
/* The hook: ioctl() as the program calls it. What does not concern a slice goes to the kernel at once. */
#include "hook.h"

/* Weak and without a version: whichever C library the program has resolves it. */
extern int *__errno_location(void) __attribute__((weak));

enum call {
	CALL_OTHER,
	CALL_ALLOC,
	CALL_FREE,
	CALL_AVAILABLE,
	CALL_SVM,
	CALL_CREATE_QUEUE,
	CALL_DESTROY_QUEUE,
	CALL_UPDATE_QUEUE,
	CALL_SET_CU_MASK,
	CALL_CREATE_PROCESS,
	CALL_GEM_CREATE,
	CALL_GEM_CLOSE,
	CALL_GEM_OP,
	CALL_CREATE_DUMB,
};

/*
 * How many bytes of a call's argument matter here. KFD copies as many as the request says and takes the others for zero:
 * of a shorter one it would see other values than we do. Every ROCm release sends these whole.
 */
static const uint8_t needed[] = {
	[CALL_ALLOC] = sizeof(struct kfd_alloc_memory),
	[CALL_FREE] = sizeof(struct kfd_free_memory),
	[CALL_AVAILABLE] = sizeof(struct kfd_available_memory),
	[CALL_SVM] = sizeof(struct kfd_svm),
	[CALL_CREATE_QUEUE] = sizeof(struct kfd_create_queue),
	[CALL_DESTROY_QUEUE] = sizeof(uint32_t),
	[CALL_UPDATE_QUEUE] = sizeof(struct kfd_update_queue),
	[CALL_SET_CU_MASK] = sizeof(struct kfd_set_cu_mask),
	[CALL_CREATE_PROCESS] = 0,
};

static enum call kfd_call(uint32_t number)
{
	switch (number) {
	case KFD_ALLOC_MEMORY:
		return CALL_ALLOC;
	case KFD_FREE_MEMORY:
		return CALL_FREE;
	case KFD_AVAILABLE_MEMORY:
		return CALL_AVAILABLE;
	case KFD_SVM:
		return CALL_SVM;
	case KFD_CREATE_QUEUE:
		return CALL_CREATE_QUEUE;
	case KFD_DESTROY_QUEUE:
		return CALL_DESTROY_QUEUE;
	case KFD_UPDATE_QUEUE:
		return CALL_UPDATE_QUEUE;
	case KFD_SET_CU_MASK:
		return CALL_SET_CU_MASK;
	case KFD_CREATE_PROCESS:
		return CALL_CREATE_PROCESS;
	}
	return CALL_OTHER;
}

static enum call drm_call(uint32_t number)
{
	switch (number) {
	case DRM_AMDGPU_GEM_CREATE:
		return CALL_GEM_CREATE;
	case DRM_GEM_CLOSE:
	case DRM_DESTROY_DUMB:
		return CALL_GEM_CLOSE;
	case DRM_AMDGPU_GEM_OP:
		return CALL_GEM_OP;
	case DRM_CREATE_DUMB:
		return CALL_CREATE_DUMB;
	}
	return CALL_OTHER;
}

/* KFD looks at the number alone, and so did DRM before Linux 5.14: a foreign type is theirs where the file is. */
static enum call classify(int fd, unsigned long request)
{
	const uint32_t number = IOCTL_NUMBER(request), type = IOCTL_TYPE(request);
	const enum call kfd = kfd_call(number), drm = drm_call(number);

	if (kfd != CALL_OTHER && (type == TYPE_KFD || is_kfd(fd)))
		return kfd;
	return drm != CALL_OTHER && (type == TYPE_DRM || is_drm(fd)) ? drm : CALL_OTHER;
}

/* A lease whose limits cannot be trusted: no VRAM and no queues, everything else as ever. */
static long refuse(int fd, unsigned long request, void *argument, enum call call)
{
	const struct kfd_alloc_memory *alloc = argument;
	const union drm_gem_create *create = argument;
	const struct drm_gem_op *op = argument;
	const size_t size = IOCTL_SIZE(request);

	switch (call) {
	case CALL_ALLOC:
		if (alloc->flags & ALLOC_VRAM)
			return -ENOMEM;
		break;
	case CALL_GEM_CREATE:
		if (size >= sizeof(create->in) && create->in.domains & GEM_DOMAIN_VRAM)
			return -ENOMEM;
		break;
	case CALL_GEM_OP:
		if (size >= sizeof(*op) && op->operation == GEM_OP_SET_PLACEMENT && op->value & GEM_DOMAIN_VRAM)
			return -EPERM;
		break;
	case CALL_SVM:
	case CALL_CREATE_QUEUE:
	case CALL_CREATE_DUMB:
		return -ENOMEM;
	default:
		break;
	}
	return sys_ioctl(fd, request, argument);
}

static long govern(struct hook *hook, int fd, unsigned long request, void *argument, enum call call)
{
	switch (call) {
	case CALL_ALLOC:
		return alloc_memory(hook, fd, request, argument);
	case CALL_FREE:
		return release(hook, fd, request, argument, SPACE_MEMORY,
			       ((struct kfd_free_memory *)argument)->handle);
	case CALL_AVAILABLE:
		return available_memory(hook, fd, request, argument);
	case CALL_SVM:
		return set_svm(hook, fd, request, argument);
	case CALL_CREATE_QUEUE:
		return create_queue(hook, fd, request, argument);
	case CALL_DESTROY_QUEUE:
		return release(hook, fd, request, argument, SPACE_QUEUE,
			       ((struct kfd_destroy_queue *)argument)->queue_id);
	case CALL_UPDATE_QUEUE:
		return update_queue(hook, fd, request, argument);
	case CALL_SET_CU_MASK:
		return set_cu_mask(hook, fd, request, argument);
	case CALL_CREATE_PROCESS:
		/* A second context has handles and queues of its own, by the same numbers: as before Linux 7. */
		return -EINVAL;
	case CALL_GEM_CREATE:
		return gem_create(hook, fd, request, argument);
	case CALL_CREATE_DUMB:
		return create_dumb(hook, fd, request, argument);
	case CALL_GEM_OP:
		return gem_op(hook, fd, request, argument);
	case CALL_GEM_CLOSE:
		return release(hook, fd, request, argument, SPACE_GEM + (uint32_t)fd,
			       ((struct drm_gem_close *)argument)->handle);
	case CALL_OTHER:
		break;
	}
	return sys_ioctl(fd, request, argument);
}

static long answer(int fd, unsigned long request, void *argument)
{
	const enum call call = classify(fd, request);
	struct hook *hook;

	if (call == CALL_OTHER || (uintptr_t)argument < PAGE_SIZE)
		return sys_ioctl(fd, request, argument);
	hook = hook_get();
	if (!hook)
		return sys_ioctl(fd, request, argument);
	if (call < CALL_GEM_CREATE && IOCTL_SIZE(request) < needed[call])
		return -EINVAL;
	if (call == CALL_GEM_CLOSE && IOCTL_SIZE(request) < sizeof(uint32_t))	/* closes some other, or none */
		return sys_ioctl(fd, request, argument);
	if (__atomic_load_n(&hook->phase, __ATOMIC_ACQUIRE) != PHASE_LEASED)
		return refuse(fd, request, argument, call);
	return govern(hook, fd, request, argument, call);
}

/* glibc declares (int, unsigned long, ...) and musl (int, int, ...): both pass the request in one register. */
__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, void *argument)
{
	const long result = answer(fd, request, argument);

	if (!is_error(result))
		return (int)result;
	if (__errno_location)
		*__errno_location() = (int)-result;
	return -1;
}
