/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpulease-supervisor: starts one command of a lease under a seccomp filter that root installed before any code of
 * the user ran, and answers the filter's notifications: the ioctls that take VRAM, or choose CUs or a priority. One
 * process a launch, so that a program that stalls its supervisor stalls nobody else, and that there is no socket.
 * For a lease's containers it starts nothing: their engine's runtime installs the filter, and hands it the listeners.
 * What it can and cannot hold is in docs/supervisor.md.
 */
#ifndef GPULEASE_SUPERVISOR_H
#define GPULEASE_SUPERVISOR_H

#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/stat.h>
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
	const char *socket;		/* where runtimes hand over listeners, or NULL: it starts a command, */
	const char *within;		/* and the path of the cgroup that all who ask must be in */
	int limits;			/* descriptors: the lease's limits, or -1: the command is not supervised, */
	int cgroup;			/* its cgroup's directory, */
	int home;			/* the supervisor's own cgroup's directory, or -1, */
	int answer;			/* where the command's start is told, */
	int peer;			/* and the caller's pidfd */
	pid_t peer_pid;
	struct {
		int command;		/* the caller's own numbers: a sealed memory file with the command's words, */
		int standard[3], cwd;	/* what the command gets, */
		int report;		/* and the pipe where its end is told */
	} offered;
	uid_t uid;
	gid_t gid;
	size_t group_count;
	gid_t *groups;
	mode_t mask;
	int nice;
	bool no_new_privileges;
	bool private_ipc;
	uint64_t ignored;		/* bit N-1: signal N is ignored */
	const char *oom_adjust;
	struct { bool set; struct rlimit value; } limit[RLIM_NLIMITS];
	const unsigned char *cpus;	/* affinity as bytes of a mask, or NULL */
	size_t cpu_bytes;
	struct stand_in render[MAX_STAND_INS];
	size_t renders;
};

/* What the child that becomes the command tells its parent. */
struct told {
	int number;			/* errno; 0: it is ready */
	int detail;			/* the descriptor's number, where it is about one */
	int listener, report;		/* the child's descriptors, where it is ready */
	char step[24], word[200];	/* what failed, of which command */
};

/* supervisor_request.c: read and check what the agent wrote; a text that says what is wrong, or NULL */
const char *request_read(int descriptor, struct request *request);
const char *limits_read(int descriptor, uint64_t lease, struct limits *limits);
bool read_all(int descriptor, void *to, size_t size);

/* supervisor_filter.c: the listener's descriptor, or -errno */
int filter_install(void);
void filter_hurry(int listener);

/* supervisor_private.c: an IPC namespace and a /dev/shm of this process's own; 0, or -1 with errno */
int private_ipc(void);

/* supervisor_take.c: in the child, what the caller offers; false with `told` saying why not */
struct taken {
	int cwd, report;
	char **argv, **envp;
};
bool take(const struct request *request, struct taken *taken, struct told *told);

/* supervisor_launch.c: start the command; false with `told` saying why not */
struct launched {
	pid_t pid;
	int pidfd, report;
	int listener;			/* -1 where it is not supervised */
};
/* supervisor.c: the commands, each with its exit code */
int run(int request);
int probe(void);
int probe_ipc(void);

/* supervisor_outside.c: what the agent asks on stdin */
int outside(void);

bool launch(const struct request *request, struct launched *launched, struct told *told);

/* supervisor_notify.c: answer one notification; false once there is nobody left to notify */
struct supervised {
	struct limits limits;
	const char *kfd_processes;
	struct file_identity kfd;
	const char *within;		/* who is in no cgroup below this is not answered for; NULL: anybody is */
	const struct stand_in *render;
	size_t renders;
	int listener;			/* of whom is answered now */
};
bool notify_sizes_fit(void);
bool notify_answer(struct supervised *lease);

/* supervisor_attend.c: containers' listeners, by a socket; false with errno where there cannot be one */
bool attend_open(const char *path);
void attend(struct supervised *lease);

/* supervisor_account.c: what the lease uses of device `index`, and whether `size` more fits */
enum charge { CHARGE_COUNTED, CHARGE_UNCOUNTED };	/* by the kernel's counters, or by nobody */
bool account_take(struct supervised *lease, uint32_t index, pid_t process, pid_t thread, uint64_t size,
		  enum charge charge);
bool account_range(struct supervised *lease, uint32_t index, pid_t process, uint64_t start, uint64_t size);
bool account_export(struct supervised *lease, pid_t process);
bool account_contexts(struct supervised *lease, pid_t process);
void account_returned(pid_t thread);

/* supervisor_files.c: files that stay open, as far as the limit goes */
int files_keep(const char *path, int flags);
void files_forget(int *file);

/* supervisor_counters.c: what KFD counts for one process */
struct counters {
	bool contexts;			/* it may have more than one */
	int file[MAX_DEVICES];
};
void counters_init(struct counters *counters);
void counters_close(struct counters *counters);
bool counters_exist(const struct supervised *lease, pid_t process);
uint64_t counters_read(const struct supervised *lease, struct counters *counters, pid_t process, uint32_t device);

/* supervisor_proc.c: what /proc says */
bool proc_look_at(const struct supervised *lease, pid_t thread, int descriptor, pid_t *process, struct stat *status);
uint64_t proc_start_time(pid_t process);
bool proc_in_ioctl(pid_t thread);
enum mapped { MAPPED, UNMAPPED, MAPPINGS_UNSEEN };
enum mapped proc_mapped(pid_t process, uint64_t start, uint64_t end);
uint64_t proc_number(const char *path);
bool proc_read_number(int file, uint64_t *number);

/* cumask.c, shared with the hook */
void cumask_map(const struct limits_device *device, const uint32_t *asked, uint32_t bits,
		uint32_t granted[MASK_WORDS]);

#endif
