// SPDX-License-Identifier: Apache-2.0
/*
 * The filter: an ioctl whose number could be one that takes VRAM, or gives a queue priority or CUs, is notified,
 * whatever its other bits: KFD looks at the low byte only, DRM at the two lower ones (since Linux 5.14), and the kernel at the lower half
 * of the argument only. Which file it goes to, the supervisor finds out. int 0x80 from a 64-bit program reaches both
 * as well; x32 is refused. What containers' runtimes install is the same: nodeagent/domain/seccomp.py.
 */
#include "supervisor.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kfd.h"
#include "supervisor_ioctls.h"

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)	/* Linux 5.19 */
#endif
#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS SECCOMP_IOW(4, __u64)	/* Linux 6.6 */
#define SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP 1UL
#endif

#define IOCTL_I386 54

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define KEEP(bits) BPF_STMT(BPF_ALU | BPF_AND | BPF_K, bits)
#define DRM(number) ((uint32_t)TYPE_DRM << 8 | (number))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)
#define IF_EQUAL(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no)
#define IF_AT_LEAST(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, value, yes, no)

/* Both sides run in turns: waking the other on this CPU makes a call six times cheaper. Older kernels: no. */
void filter_hurry(int listener)
{
	ioctl(listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP);
}

int filter_install(void)
{
	struct sock_filter program[] = {
		LOAD(arch),
		IF_EQUAL(AUDIT_ARCH_X86_64, 4, 0),
		IF_EQUAL(AUDIT_ARCH_I386, 1, 0),
		RETURN(SECCOMP_RET_ERRNO | ENOSYS),
		LOAD(nr),
		IF_EQUAL(IOCTL_I386, 5, 4),
		LOAD(nr),
		IF_AT_LEAST(X32_BIT, 0, 1),
		RETURN(SECCOMP_RET_ERRNO | ENOSYS),
		IF_EQUAL(SYS_ioctl, 1, 0),
		RETURN(SECCOMP_RET_ALLOW),
		LOAD(args[1]),			/* the lower half: little endian */
		KEEP(0xffff),
		IF_EQUAL(DRM(DRM_AMDGPU_GEM_CREATE), 13, 0),
		IF_EQUAL(DRM(DRM_AMDGPU_GEM_OP), 12, 0),
		IF_EQUAL(DRM(DRM_CREATE_DUMB), 11, 0),
		KEEP(0xff),
		IF_EQUAL(KFD_ALLOC_MEMORY, 9, 0),
		IF_EQUAL(KFD_CREATE_QUEUE, 8, 0),
		IF_EQUAL(KFD_UPDATE_QUEUE, 7, 0),
		IF_EQUAL(KFD_SET_CU_MASK, 6, 0),
		IF_EQUAL(KFD_SVM, 5, 0),
		IF_EQUAL(KFD_CRIU, 4, 0),
		IF_EQUAL(KFD_EXPORT_DMABUF, 3, 0),
		IF_EQUAL(KFD_IPC_EXPORT, 2, 0),
		IF_EQUAL(KFD_CREATE_PROCESS, 1, 0),
		RETURN(SECCOMP_RET_ALLOW),
		RETURN(SECCOMP_RET_USER_NOTIF),
	};
	const struct sock_fprog filter = { sizeof(program) / sizeof(*program), program };
	const unsigned long flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
	const long listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter);

	if (listener < 0)
		return -errno;
	filter_hurry((int)listener);
	return (int)listener;
}
