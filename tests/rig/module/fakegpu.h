/* SPDX-License-Identifier: GPL-2.0 */
/*
 * fakegpu - what its parts share: core.c says what it all is, ioctl.c speaks the drivers' own language,
 * events.c tells of resets.
 */
#ifndef FAKEGPU_H
#define FAKEGPU_H

#include <linux/fs.h>
#include <linux/kobject.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/sysfs.h>
#include <linux/types.h>

#define FG_MAX_GPUS	16

struct device;
struct dmem_cgroup_pool_state;
struct dmem_cgroup_region;

struct fg_gpu {
	struct dmem_cgroup_region *region;
	struct device *function;	/* named like the PCI function */
	struct device *card;		/* of DRM, below it */
	struct attribute vram_attr;	/* vram_GPUID of every process */
	char vram_name[24];
	unsigned int gpu_id;
	unsigned int minor;
	u64 size;
	u64 used;			/* bytes in "VRAM", whoever holds them */
	struct list_head buffers;	/* all of them, oldest first */
};

/* A user of the GPUs, as KFD knows one: the opener, whoever else has got the file since. */
struct fg_process {
	struct kobject kobj;		/* named by the pid */
	struct list_head node;
	pid_t pid;
	unsigned int files;
	u64 vram[FG_MAX_GPUS];
};

struct fg_file {
	struct fg_gpu *gpu;		/* NULL for /dev/kfd */
	struct fg_process *process;
	unsigned long acquired;		/* of /dev/kfd: bit by GPU whose render node it was shown */
	unsigned int next_id;
	struct list_head buffers;
};

struct fg_buffer {
	struct list_head in_file;	/* later in fg_late */
	struct list_head in_gpu;
	struct fg_gpu *gpu;
	unsigned int id;
	unsigned long closed;		/* jiffies */
	u64 size;
	struct dmem_cgroup_pool_state *pool;	/* NULL once evicted */
};

extern struct fg_gpu fg_gpus[FG_MAX_GPUS];
extern int fg_nr;
/* One lock for all buffers: this is a test device, not a fast path. */
extern struct mutex fg_lock;

/* With fg_lock held: a buffer of @size bytes on @g for @f; its id, or a negative errno. */
int fg_alloc(struct fg_file *f, struct fg_gpu *g, u64 size);
/* With fg_lock held: free the buffer @id of @f, or all of them. */
int fg_drop(struct fg_file *f, unsigned int id, bool all);
/* Without it, after an alloc: what the fault "hang" does. */
void fg_hang_after_alloc(void);
/* The GPU whose render node @file is; NULL for another file. */
struct fg_gpu *fg_render_gpu(struct file *file);

/* The class of the cards, then each card as its GPU comes and goes. */
int fg_cards_init(void);
void fg_cards_exit(void);
int fg_add_card(struct fg_gpu *g, const char *pci);
void fg_remove_card(struct fg_gpu *g);

long fg_kfd_ioctl(struct file *file, unsigned int cmd, unsigned long arg);
long fg_render_ioctl(struct file *file, unsigned int cmd, unsigned long arg);

#endif
