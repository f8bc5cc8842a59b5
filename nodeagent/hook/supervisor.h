/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpulease-supervisor: starts one command of a lease under a seccomp filter that root installed before any code of
 * the user ran, and answers the filter's notifications: the ioctls that take VRAM or choose CUs. One process a
 * launch, so that a program that stalls its supervisor stalls nobody else, and so that there is no socket to reach.
 * What it can and cannot hold is in docs/supervisor.md.
 */
#ifndef GPULEASE_SUPERVISOR_H
#define GPULEASE_SUPERVISOR_H

#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "format.h"

#define MAX_GROUPS 65536
#define OOM_ADJUST "-900"		/* its death makes the lease's programs fail */

/* A file that ioctls may go to: by device number, or by inode where the node is an ordinary file. */
struct file_identity {
	bool known, device;
	dev_t number;			/* st_rdev of a device, else st_dev */
	ino_t inode;			/* of an ordinary file */
};

/* A render node that is no DRM device: of a fake driver. Real ones are known by their numbers. */
#define MAX_STAND_INS 16
struct stand_in {
	const char *path;
	struct file_identity file;
	uint32_t minor;
};

/* What the agent asks. Strings point into the request, which is never freed. */
struct request {
	uint64_t lease;
	const char *kfd;		/* path of the KFD node */
	const char *kfd_processes;	/* directory of KFD's counters, sysfs class/kfd/kfd/proc */
	int limits;			/* descriptors: the lease's limits, */
	int cgroup;			/* its cgroup's directory, */
	int home;			/* the supervisor's own cgroup's directory, or -1, */
	int in, out, err, cwd;		/* what the command gets, */
	int report;			/* where its end is told, */
	int answer;			/* and where its start is */
	uid_t uid;
	gid_t gid;
	size_t group_count;
	gid_t *groups;
	mode_t mask;
	int nice;
	bool no_new_privileges;
	uint64_t ignored;		/* bit N-1: signal N is ignored */
	const char *oom_adjust;
	struct { bool set; struct rlimit value; } limit[RLIM_NLIMITS];
	const unsigned char *cpus;	/* affinity as bytes of a mask, or NULL */
	size_t cpu_bytes;
	size_t argc, envc;
	char **argv, **envp;
	struct stand_in render[MAX_STAND_INS];
	size_t renders;
};

/* supervisor_request.c: read and check what the agent wrote; a text that says what is wrong, or NULL */
const char *request_read(int descriptor, struct request *request);
const char *limits_read(int descriptor, uint64_t lease, struct limits *limits);

/* supervisor_filter.c: the listener's descriptor, or -errno */
int filter_install(void);

/* supervisor_launch.c: start the command; returns its pid, or -errno with `step` saying where it failed */
pid_t launch(const struct request *request, int *listener, int *pidfd, const char **step);

/* supervisor_notify.c: answer one notification; false once there is nobody left to notify */
struct supervised {
	struct limits limits;
	const char *kfd_processes;
	struct file_identity kfd;
	const struct stand_in *render;
	size_t renders;
	int listener;
};
bool notify_sizes_fit(void);
bool notify_answer(struct supervised *lease);

/* supervisor_account.c: what the lease uses of device `index`, and whether `size` more fits */
enum charge { CHARGE_COUNTED, CHARGE_UNCOUNTED };	/* by the kernel's counters, or by nobody */
bool account_take(struct supervised *lease, uint32_t index, pid_t process, pid_t thread, uint64_t size,
		  enum charge charge);
bool account_range(struct supervised *lease, uint32_t index, pid_t process, uint64_t start, uint64_t size);
bool account_export(struct supervised *lease, pid_t process);
void account_returned(pid_t thread);

/* supervisor_proc.c: what /proc says */
pid_t proc_process_of(pid_t thread);
uint64_t proc_start_time(pid_t process);
bool proc_in_ioctl(pid_t thread);
enum mapped { MAPPED, UNMAPPED, MAPPINGS_UNSEEN };
enum mapped proc_mapped(pid_t process, uint64_t start, uint64_t end);
uint64_t proc_number(const char *path);

/* cumask.c, shared with the hook */
void cumask_map(const struct limits_device *device, const uint32_t *asked, uint32_t bits,
		uint32_t granted[MASK_WORDS]);

#endif
