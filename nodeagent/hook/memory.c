// SPDX-License-Identifier: Apache-2.0
/*
 * The calls that allocate and free. Charged before the kernel is asked and credited after the kernel gave it back,
 * so that the kernel never has more than is charged.
 */
#include "hook.h"

/* Give back what the process no longer has without having told: unmapped ranges, closed DRM files. */
static int is_closed_gem(const struct limits *limits, const struct handle *handle)
{
	return handle->space >= SPACE_GEM &&
	       device_of_file(limits, (int)(handle->space - SPACE_GEM)) != (int)handle->device;
}

static int credit_stale(struct hook *hook)
{
	uint64_t credit[MAX_DEVICES] = { 0 };
	int any = svm_trim(hook, credit);

	any |= handles_forget(&hook->handles, is_closed_gem, &hook->limits, credit);
	if (any)
		usage_credit(hook, credit);
	return any;
}

/* Charge one device and reserve a place for the handle; the hook is entered and left here. */
static long charge(struct hook *hook, int device, uint64_t bytes)
{
	uint64_t add[MAX_DEVICES] = { 0 };
	long failed;

	add[device] = bytes;
	if (hook_enter(hook))
		return -ENOMEM;
	failed = handles_reserve(&hook->handles);
	if (!failed)
		failed = usage_charge(hook, add, EFFORT_QUICK);
	if (failed) {
		credit_stale(hook);
		failed = usage_charge(hook, add, EFFORT_LAST);
	}
	hook_leave(hook);
	return failed;
}

static void credit(struct hook *hook, uint32_t device, uint64_t bytes)
{
	uint64_t give[MAX_DEVICES] = { 0 };

	give[device] = bytes;
	if (hook_enter(hook))
		return;		/* stays charged */
	usage_credit(hook, give);
	hook_leave(hook);
}

void remember(struct hook *hook, struct handle handle)
{
	if (hook_enter(hook))
		return;
	handles_put(&hook->handles, handle);
	hook_leave(hook);
}

static int take(struct hook *hook, uint32_t space, uint64_t id, struct handle *taken)
{
	int found;

	if (hook_enter(hook))
		return 0;
	found = handles_take(&hook->handles, space, id, taken);
	hook_leave(hook);
	return found;
}

/*
 * Free or close: the handle leaves the table before the kernel is asked, since the kernel may give the same number
 * to another thread at once.
 */
long release(struct hook *hook, int fd, unsigned long request, void *argument, uint32_t space, uint64_t id)
{
	struct handle taken;
	const int known = take(hook, space, id, &taken);
	const long result = sys_ioctl(fd, request, argument);

	if (!known)
		return result;
	if (is_error(result))
		remember(hook, taken);
	else if (taken.bytes)
		credit(hook, taken.device, taken.bytes);
	return result;
}

long alloc_memory(struct hook *hook, int fd, unsigned long request, struct kfd_alloc_memory *alloc)
{
	const int device = device_of_gpu(&hook->limits, alloc->gpu_id);
	const uint64_t size = alloc->flags & ALLOC_AQL_QUEUE ? alloc->size / 2 : alloc->size;
	const uint64_t bytes = whole_pages(size);
	long result;

	if (!(alloc->flags & ALLOC_VRAM))
		return sys_ioctl(fd, request, alloc);
	if (device < 0 || charge(hook, device, bytes))	/* a GPU that is not leased gives nothing */
		return -ENOMEM;
	result = sys_ioctl(fd, request, alloc);
	if (is_error(result))
		credit(hook, (uint32_t)device, bytes);
	else
		remember(hook, (struct handle){ alloc->handle, bytes, SPACE_MEMORY, (uint32_t)device });
	return result;
}

/* Create a GEM buffer of `bytes` in VRAM, whose number the kernel writes to `handle`. */
static long create_buffer(struct hook *hook, int fd, unsigned long request, void *argument, int device,
			  uint64_t bytes, const uint32_t *handle)
{
	const uint32_t space = SPACE_GEM + (uint32_t)fd;
	struct handle former;
	long result;

	if (charge(hook, device, bytes))
		return -ENOMEM;
	result = sys_ioctl(fd, request, argument);
	if (is_error(result)) {
		credit(hook, (uint32_t)device, bytes);
		return result;
	}
	/* The number is in use no more: the file that had it was closed, and this descriptor is another. */
	if (take(hook, space, *handle, &former))
		credit(hook, former.device, former.bytes);
	remember(hook, (struct handle){ *handle, bytes, space, (uint32_t)device });
	return result;
}

/* Whether the kernel copies all of an argument of `size` bytes there and back, as we take it to. */
static int is_whole(unsigned long request, size_t size)
{
	return IOCTL_SIZE(request) >= size && (request & IOCTL_BOTH_WAYS) == IOCTL_BOTH_WAYS;
}

long gem_create(struct hook *hook, int fd, unsigned long request, union drm_gem_create *create)
{
	const int device = device_of_file(&hook->limits, fd);

	/* First whose file it is: other drivers have other calls of this number, with smaller arguments. */
	if (device < 0)
		return sys_ioctl(fd, request, create);
	if (!is_whole(request, sizeof(*create)))
		return -EINVAL;
	if (!(create->in.domains & GEM_DOMAIN_VRAM))
		return sys_ioctl(fd, request, create);
	return create_buffer(hook, fd, request, create, device, whole_pages(create->in.size), &create->out.handle);
}

/* A picture's buffer of a primary node, in VRAM where the card has any. Its size is known afterwards only. */
long create_dumb(struct hook *hook, int fd, unsigned long request, struct drm_create_dumb *create)
{
	const int device = device_of_file(&hook->limits, fd);
	uint64_t bytes;

	if (device < 0)
		return sys_ioctl(fd, request, create);
	if (!is_whole(request, sizeof(*create)))
		return -EINVAL;
	/* amdgpu_gem_align_pitch() makes lines of a multiple of 256 pixels at most. */
	bytes = (((uint64_t)create->width + 255) & ~255ULL) * (((uint64_t)create->bits_per_pixel + 7) / 8);
	if (__builtin_mul_overflow(bytes, (uint64_t)create->height, &bytes))
		return -ENOMEM;
	return create_buffer(hook, fd, request, create, device, whole_pages(bytes), &create->handle);
}

/* Moving a buffer to VRAM that was not charged as one is an allocation of unknown size. */
long gem_op(struct hook *hook, int fd, unsigned long request, struct drm_gem_op *op)
{
	const int moves = op->operation == GEM_OP_SET_PLACEMENT && op->value & GEM_DOMAIN_VRAM;
	int charged;

	if (!moves || device_of_file(&hook->limits, fd) < 0)
		return sys_ioctl(fd, request, op);
	if (hook_enter(hook))
		return -EPERM;
	charged = handles_find(&hook->handles, SPACE_GEM + (uint32_t)fd, op->handle) != NULL;
	hook_leave(hook);
	return charged ? sys_ioctl(fd, request, op) : -EPERM;
}

long available_memory(struct hook *hook, int fd, unsigned long request, struct kfd_available_memory *answer)
{
	const int device = device_of_gpu(&hook->limits, answer->gpu_id);
	const long result = sys_ioctl(fd, request, answer);
	uint64_t remaining = 0;

	if (is_error(result))
		return result;
	if (device >= 0 && !hook_enter(hook)) {
		remaining = usage_remaining(hook, (uint32_t)device);
		hook_leave(hook);
	}
	if (answer->available > remaining)
		answer->available = remaining;
	return result;
}

/* Charge a range as planned, after giving back what is unmapped if need be. Returns as svm_plan() does. */
static int charge_range(struct hook *hook, uint64_t start, uint64_t end, uint64_t devices)
{
	uint64_t add[MAX_DEVICES];
	int planned = svm_plan(hook, start, end, devices, add);

	if (planned < 0)
		return planned;
	if (usage_charge(hook, add, EFFORT_QUICK)) {
		credit_stale(hook);
		planned = svm_plan(hook, start, end, devices, add);
		if (planned < 0 || usage_charge(hook, add, EFFORT_LAST))
			return -ENOMEM;
	}
	svm_accept(hook);
	return planned;
}

static void drop_range(struct hook *hook, uint64_t start, uint64_t end)
{
	uint64_t credit[MAX_DEVICES] = { 0 };

	if (hook_enter(hook))
		return;
	svm_drop(hook, start, end, credit);
	usage_credit(hook, credit);
	hook_leave(hook);
}

long set_svm(struct hook *hook, int fd, unsigned long request, struct kfd_svm *svm)
{
	const uint64_t start = svm->start & ~(uint64_t)(PAGE_SIZE - 1);
	const uint64_t end = whole_pages(add_saturating(svm->start, svm->size));
	/* As many as the request has room for: the kernel copies no more. */
	const size_t room = (IOCTL_SIZE(request) - sizeof(*svm)) / sizeof(struct kfd_svm_attribute);
	const uint32_t attributes = svm->attributes < room ? svm->attributes : (uint32_t)room;
	long result;
	int planned;

	if (svm->operation != SVM_SET_ATTRIBUTES || start >= end)
		return sys_ioctl(fd, request, svm);
	if (svm_names_other(&hook->limits, svm, attributes) || hook_enter(hook))
		return -ENOMEM;
	planned = charge_range(hook, start, end, svm_devices(&hook->limits, svm, attributes));
	hook_leave(hook);
	if (planned < 0)
		return -ENOMEM;
	result = sys_ioctl(fd, request, svm);
	if (is_error(result) && planned == 1)	/* a range that was in part charged before stays charged */
		drop_range(hook, start, end);
	return result;
}
