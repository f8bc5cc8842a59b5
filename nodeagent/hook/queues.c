// SPDX-License-Identifier: Apache-2.0
/* The calls that make queues, and choose their CUs and their priority. */
#include "hook.h"
#include "priority.h"

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

/* Of a new queue; where the kernel refuses the mask, a strict lease gets none: -ENOMEM. */
static long give_cus(struct hook *hook, int fd, const struct limits_device *limits, uint32_t queue)
{
	struct kfd_destroy_queue destroy = { queue, 0 };

	if (!is_error(set_mask(fd, REQUEST_SET_CU_MASK, limits, queue, limits->mask)))
		return 0;
	if (hook->limits.flags & LIMITS_STRICT) {
		hook_say(hook, "the kernel refused the CU mask", "/dev/kfd", "no queue is made");
		sys_ioctl(fd, REQUEST_DESTROY_QUEUE, &destroy);
		return -ENOMEM;
	}
	hook_say(hook, "the kernel refused the CU mask", "/dev/kfd", "the queue has all CUs");
	return 0;
}

static int has_cus(const struct kfd_create_queue *queue)
{
	return queue->type == QUEUE_COMPUTE || queue->type == QUEUE_COMPUTE_AQL;
}

/* A new queue gets the lease's priority and CUs before the program knows its number, hence before any work. */
long create_queue(struct hook *hook, int fd, unsigned long request, struct kfd_create_queue *queue)
{
	const int device = device_of_gpu(&hook->limits, queue->gpu_id);
	const struct limits_device *limits = device < 0 ? NULL : &hook->limits.device[device];
	const uint32_t asked = queue->priority;
	long result;

	if (!limits)
		return -ENOMEM;	/* a GPU that is not leased runs nothing */
	queue->priority = priority_within(limits, asked);
	result = sys_ioctl(fd, request, queue);
	queue->priority = asked;
	if (!is_error(result) && limits->mask_bits && has_cus(queue))
		result = give_cus(hook, fd, limits, queue->queue_id);
	if (is_error(result) || !(limits->mask_bits || limits->queue_level))
		return result;
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

/* The program's own structure may be constant. */
long update_queue(struct hook *hook, int fd, unsigned long request, struct kfd_update_queue *update)
{
	const int device = device_of_queue(hook, update->queue_id);
	struct kfd_update_queue own = *update;

	if (device >= 0)
		own.priority = priority_within(&hook->limits.device[device], update->priority);
	if (own.priority == update->priority)
		return sys_ioctl(fd, request, update);
	return sys_ioctl(fd, REQUEST_UPDATE_QUEUE, &own);
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
