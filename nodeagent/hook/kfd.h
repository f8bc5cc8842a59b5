/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ioctls that concern a slice, from linux/kfd_ioctl.h and drm/amdgpu_drm.h. Own definitions: distributions'
 * headers differ in age, and the kernel looks only at the number (KFD) or at type and number (DRM). The size and
 * direction bits are the caller's, and differ between ROCm releases.
 */
#ifndef GPULEASE_KFD_H
#define GPULEASE_KFD_H

#include <stdint.h>

#define IOCTL_NUMBER(request) ((uint32_t)(request) & 0xffu)
#define IOCTL_SIZE(request) ((uint32_t)(request) >> 16 & 0x3fffu)
#define IOCTL_BOTH_WAYS 0xc0000000u	/* copied to the kernel and back */
#define IOCTL_TYPE(request) ((uint32_t)(request) >> 8 & 0xffu)
#define TYPE_KFD 'K'
#define TYPE_DRM 'd'

enum kfd_number {
	KFD_CREATE_QUEUE = 0x02,
	KFD_DESTROY_QUEUE = 0x03,
	KFD_UPDATE_QUEUE = 0x07,
	KFD_ALLOC_MEMORY = 0x16,
	KFD_FREE_MEMORY = 0x17,
	KFD_SET_CU_MASK = 0x1a,
	KFD_SVM = 0x20,
	KFD_AVAILABLE_MEMORY = 0x23,
	KFD_CREATE_PROCESS = 0x27,
};

enum drm_number {
	DRM_GEM_CLOSE = 0x09,
	DRM_AMDGPU_GEM_CREATE = 0x40,
	DRM_AMDGPU_GEM_OP = 0x50,	/* may move a buffer from system memory to VRAM */
	DRM_CREATE_DUMB = 0xb2,		/* a display's buffer, on primary nodes */
	DRM_DESTROY_DUMB = 0xb4,
};

#define REQUEST_SET_CU_MASK 0x40104b1aUL
#define REQUEST_DESTROY_QUEUE 0xc0084b03UL
#define REQUEST_UPDATE_QUEUE 0x40184b07UL

struct kfd_create_queue {
	uint64_t ring, write_pointer, read_pointer, doorbell;
	uint32_t ring_size, gpu_id, type, percentage, priority, queue_id;
};

#define QUEUE_COMPUTE 0
#define QUEUE_COMPUTE_AQL 2

struct kfd_destroy_queue {
	uint32_t queue_id, pad;
};

struct kfd_update_queue {
	uint64_t ring;
	uint32_t queue_id, ring_size, percentage, priority;
};

struct kfd_alloc_memory {
	uint64_t address, size, handle, mmap_offset;
	uint32_t gpu_id, flags;
};

#define ALLOC_VRAM (1u << 0)
#define ALLOC_AQL_QUEUE (1u << 27)	/* mapped twice in a row: the memory is half of `size` */

struct kfd_free_memory {
	uint64_t handle;
};

struct kfd_set_cu_mask {
	uint32_t queue_id, bits;
	uint64_t mask;
};

struct kfd_available_memory {
	uint64_t available;
	uint32_t gpu_id, pad;
};

struct kfd_svm_attribute {
	uint32_t type, value;
};

struct kfd_svm {
	uint64_t start, size;
	uint32_t operation, attributes;
	struct kfd_svm_attribute attribute[];
};

#define SVM_SET_ATTRIBUTES 0
#define SVM_PREFERRED_LOCATION 0
#define SVM_PREFETCH_LOCATION 1
#define SVM_ACCESS 2
#define SVM_ACCESS_IN_PLACE 3

union drm_gem_create {
	struct {
		uint64_t size, alignment, domains, flags;
	} in;
	struct {
		uint32_t handle, pad;
	} out;
};

#define GEM_DOMAIN_VRAM 4u

struct drm_gem_close {			/* and DRM_DESTROY_DUMB's, which ends before `pad` */
	uint32_t handle, pad;
};

struct drm_gem_op {
	uint32_t handle, operation;
	uint64_t value;
};

#define GEM_OP_SET_PLACEMENT 1u		/* `value`: the new domains */

struct drm_create_dumb {
	uint32_t height, width, bits_per_pixel, flags, handle, pitch;
	uint64_t size;
};

#endif
