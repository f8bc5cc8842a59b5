// SPDX-License-Identifier: Apache-2.0
/*
 * Shared memory of the command's own: an IPC namespace, and a /dev/shm that nobody else has mounted. All that is left in
 * there ends with the command's last process.
 */
#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#define SHM "/dev/shm"
#define QUEUES "/dev/mqueue"
#define MQUEUE_MAGIC 0x19800202		/* ipc/mqueue.c; in no header */

/* As the node's: as large, and with programs in it or not. */
static int mount_shm(const struct statfs *node)
{
	const unsigned long flags = MS_NOSUID | MS_NODEV | (node->f_flags & ST_NOEXEC ? MS_NOEXEC : 0);
	char options[96];
	int length = snprintf(options, sizeof(options), "mode=1777,uid=0,gid=0");

	if (node->f_type == TMPFS_MAGIC)
		snprintf(options + length, sizeof(options) - (size_t)length, ",size=%llu",
			 (unsigned long long)node->f_blocks * (unsigned long long)node->f_bsize);
	return mount("gpulease", SHM, "tmpfs", flags, options);
}

/* By the path of the node's the command would see the node's queues; by mq_open(3) it sees its own in any case. */
static int mount_queues(void)
{
	struct statfs node;

	if (statfs(QUEUES, &node) || node.f_type != MQUEUE_MAGIC)
		return 0;
	return mount("gpulease", QUEUES, "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
}

/* Only the file system is asked for: one of the user's own tells root no more. */
static int stands_in_shm(void)
{
	struct statx here, shm;

	return !statx(AT_FDCWD, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &here) &&
	       !statx(AT_FDCWD, SHM, AT_STATX_DONT_SYNC, 0, &shm) && here.stx_dev_major == shm.stx_dev_major &&
	       here.stx_dev_minor == shm.stx_dev_minor;
}

/* 0, or -1 with errno; EXDEV: we are in the node's /dev/shm, and would stay in there. */
int private_ipc(void)
{
	struct statfs node;

	if (statfs(SHM, &node))
		return -1;
	if (stands_in_shm()) {
		errno = EXDEV;
		return -1;
	}
	if (unshare(CLONE_NEWIPC | CLONE_NEWNS))
		return -1;
	/* What the node mounts later still comes in; nothing of ours goes out. */
	if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) || mount_shm(&node))
		return -1;
	return mount_queues();
}
