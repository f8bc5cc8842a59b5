/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two files of a lease, version 1: little endian, natural alignment.
 * nodeagent/adapters/hook_format.py writes the same; tests/hook/test_format.py compares the two.
 */
#ifndef GPULEASE_FORMAT_H
#define GPULEASE_FORMAT_H

#include <stdint.h>

#define FORMAT_VERSION 1
#define LIMITS_MAGIC "GPULIMIT"
#define USAGE_MAGIC "GPUUSAGE"
#define MAGIC_SIZE 8
#define MAX_DEVICES 64
#define SLOTS 512			/* processes of one lease that may use GPUs at a time */
#define MASK_WORDS 32			/* 1024 CUs, KFD's own bound */
#define PATH_SIZE 128

/* limits: root's, 0444, renamed into place and never changed afterwards */
#define LIMITS_STRICT 1u		/* without a usage file, no VRAM */

struct limits_device {
	uint32_t gpu_id;		/* KFD's */
	uint32_t render_minor;		/* N of renderDN */
	uint64_t limit_bytes;
	uint32_t cus;			/* of the whole device */
	uint32_t unit;			/* CUs that a mask must keep together: 1, or 2 for WGP pairs */
	uint32_t mask_bits;		/* 0: no CU mask */
	uint32_t queue_level;		/* the highest priority of a queue, plus 1; 0, as before there was any: as asked */
	uint32_t mask[MASK_WORDS];
};

struct limits {
	char magic[MAGIC_SIZE];
	uint32_t version;
	uint32_t size;			/* of the whole file */
	uint64_t lease;
	uint32_t flags;
	uint32_t devices;
	uint32_t slots;
	uint32_t reserved;
	char usage[PATH_SIZE];		/* absolute path of the usage file */
	struct limits_device device[MAX_DEVICES];	/* the file ends after `devices` of them */
};

#define LIMITS_SIZE(devices) (offsetof(struct limits, device) + (devices) * sizeof(struct limits_device))

/* usage: the holder's, 0600. Read and written with pread and pwrite only: a mapping of a file that others
 * may truncate is a SIGBUS. */
struct usage_header {
	char magic[MAGIC_SIZE];
	uint32_t version;
	uint32_t devices;
	uint32_t slots;
	uint32_t reserved;
	uint64_t lease;
	uint64_t unused[4];
	uint64_t denied;		/* requests refused at the limit */
};

#define USAGE_ROWS 4096			/* then a row of SLOTS x uint64_t bytes in use per device */
#define USAGE_ROW_SIZE (SLOTS * sizeof(uint64_t))
#define USAGE_SIZE(devices) (USAGE_ROWS + (int64_t)(devices) * (int64_t)USAGE_ROW_SIZE)

/* Lock bytes, far past the end of the file. */
#define LOCK_MUTEX (1LL << 40)		/* POSIX lock: a fork child does not inherit it */
#define LOCK_SLOT(slot) (LOCK_MUTEX + 1 + (slot))	/* OFD lock: held while the slot's process lives */

#endif
