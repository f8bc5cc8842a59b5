// SPDX-License-Identifier: Apache-2.0
/* The calls that make queues and choose their CUs. */
#include "hook.h"

#define MASK_BITS_ALIGN 32u

/* Whole words, as the kernel wants them. */
static uint32_t mask_bits(const struct limits_device *device)
{
	return (device->mask_bits + MASK_BITS_ALIGN - 1) / MASK_BITS_ALIGN * MASK_BITS_ALIGN;
}

static long set_mask(int fd, unsigned long request, const struct limits_device *device, uint32_t queue,
		     const uint32_t *mask)
{
	struct kfd_set_cu_mask set = { queue, mask_bits(device), (uint64_t)(uintptr_t)mask };

	return sys_ioctl(fd, request, &set);
}

/*
 * A new queue gets the lease's CUs before the program knows its number, hence before any work. Where the kernel
 * refuses the mask, a strict lease gets no queue.
 */
long create_queue(struct hook *hook, int fd, unsigned long request, struct kfd_create_queue *queue)
{
	const int device = device_of_gpu(&hook->limits, queue->gpu_id);
	const struct limits_device *limits = device < 0 ? NULL : &hook->limits.device[device];
	long result;

	if (!limits)
		return -ENOMEM;	/* a GPU that is not leased runs nothing */
	result = sys_ioctl(fd, request, queue);
	if (is_error(result) || !limits->mask_bits)
		return result;
	if (queue->type != QUEUE_COMPUTE && queue->type != QUEUE_COMPUTE_AQL)
		return result;
	if (is_error(set_mask(fd, REQUEST_SET_CU_MASK, limits, queue->queue_id, limits->mask))) {
		struct kfd_destroy_queue destroy = { queue->queue_id, 0 };

		if (hook->limits.flags & LIMITS_STRICT) {
			hook_say(hook, "the kernel refused the CU mask", "/dev/kfd", "no queue is made");
			sys_ioctl(fd, REQUEST_DESTROY_QUEUE, &destroy);
			return -ENOMEM;
		}
		hook_say(hook, "the kernel refused the CU mask", "/dev/kfd", "the queue has all CUs");
	}
	remember(hook, (struct handle){ queue->queue_id, 0, SPACE_QUEUE, (uint32_t)device });
	return result;
}

/* The device of a queue: as remembered, else the only one there is. -1: unknown. */
static int device_of_queue(struct hook *hook, uint32_t queue)
{
	const struct handle *known;
	int device = hook->limits.devices == 1 ? 0 : -1;

	if (hook_enter(hook))
		return device;
	known = handles_find(&hook->handles, SPACE_QUEUE, queue);
	if (known)
		device = (int)known->device;
	hook_leave(hook);
	return device;
}

long set_cu_mask(struct hook *hook, int fd, unsigned long request, struct kfd_set_cu_mask *set)
{
	const int device = device_of_queue(hook, set->queue_id);
	const struct limits_device *limits = device < 0 ? NULL : &hook->limits.device[device];
	uint32_t granted[MASK_WORDS];

	/* Not ours to map, or nothing that the kernel takes: it answers itself. */
	if (!limits || !limits->mask_bits || !set->bits || set->bits % MASK_BITS_ALIGN || set->mask < PAGE_SIZE)
		return sys_ioctl(fd, request, set);
	cumask_map(limits, (const uint32_t *)(uintptr_t)set->mask, set->bits, granted);
	return set_mask(fd, request, limits, set->queue_id, granted);
}
