/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue's priority within its lease's level, for the hook and the supervisor. KFD takes 0 to 15 (kfd_chardev.c,
 * kfd_priv.h); up to 6 a queue runs at the pipes' low priority, to 10 at the medium one, above at the high one
 * (kfd_mqd_manager.c). ROCm asks the normal one for whoever chooses none, and again whenever it updates such a queue:
 * it is no choice, and becomes the level.
 */
#ifndef GPULEASE_PRIORITY_H
#define GPULEASE_PRIORITY_H

#include "format.h"

#define PRIORITY_NORMAL 7u
#define PRIORITY_MAX 15u

static inline uint32_t priority_within(const struct limits_device *device, uint32_t asked)
{
	if (!device->queue_level || asked > PRIORITY_MAX)	/* above, the kernel refuses it */
		return asked;
	return asked == PRIORITY_NORMAL || asked >= device->queue_level ? device->queue_level - 1 : asked;
}

#endif
