/* SPDX-License-Identifier: Apache-2.0 */
/* Further ways to VRAM that only the supervisor closes, beside those in kfd.h, and of system calls. */
#ifndef GPULEASE_SUPERVISOR_IOCTLS_H
#define GPULEASE_SUPERVISOR_IOCTLS_H

#define KFD_CRIU 0x22			/* its restore allocates; needs CAP_CHECKPOINT_RESTORE */
#define KFD_EXPORT_DMABUF 0x24		/* the file keeps the memory, KFD's counter falls when the handle is freed */
#define KFD_CREATE_PROCESS 0x27		/* a further context of the same process, counted beside it */
#define KFD_IPC_EXPORT 0x81		/* of AMD's own driver packages: an export, too */

#define X32_BIT 0x40000000u		/* in a system call's number: its addresses have 32 bits */

#endif
