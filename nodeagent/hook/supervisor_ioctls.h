/* SPDX-License-Identifier: Apache-2.0 */
/* Further ways to VRAM that only the supervisor closes, beside those in kfd.h. */
#ifndef GPULEASE_SUPERVISOR_IOCTLS_H
#define GPULEASE_SUPERVISOR_IOCTLS_H

#define KFD_CRIU 0x22			/* its restore allocates; needs CAP_CHECKPOINT_RESTORE */
#define DRM_CREATE_DUMB 0xb2		/* a display's buffer, on primary nodes */

#endif
