/* SPDX-License-Identifier: Apache-2.0 */
/* Further ways to VRAM that only the supervisor closes, beside those in kfd.h. */
#ifndef GPULEASE_SUPERVISOR_IOCTLS_H
#define GPULEASE_SUPERVISOR_IOCTLS_H

#define KFD_CRIU 0x22			/* its restore allocates; needs CAP_CHECKPOINT_RESTORE */
#define KFD_EXPORT_DMABUF 0x24		/* the file keeps the memory, KFD's counter falls when the handle is freed */
#define DRM_AMDGPU_GEM_OP 0x50		/* may move a buffer from system memory to VRAM */
#define DRM_CREATE_DUMB 0xb2		/* a display's buffer, on primary nodes */

struct drm_gem_op {
	uint32_t handle, operation;
	uint64_t value;
};

#define GEM_OP_SET_PLACEMENT 1u		/* `value`: the new domains */

#endif
