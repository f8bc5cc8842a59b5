/* SPDX-License-Identifier: Apache-2.0 */
/* What the hook's parts share. See docs/hook.md for the whole. */
#ifndef GPULEASE_HOOK_H
#define GPULEASE_HOOK_H

#include "format.h"
#include "kfd.h"
#include "syscalls.h"

#define PAGE_SIZE 4096u

enum phase {
	PHASE_UNKNOWN,			/* as a fork child finds it; nothing is granted, and it is asked again */
	PHASE_NO_LEASE,
	PHASE_LEASED,
	PHASE_BROKEN,			/* a lease whose limits cannot be trusted: nothing is granted */
	PHASE_GONE,			/* the limits that the environment names are not there: the same */
};

/* handles.c: what this process allocated, by the kernel's handle */
enum space {
	SPACE_MEMORY = 1,		/* KFD allocation */
	SPACE_QUEUE,
	SPACE_GEM,			/* + descriptor: GEM handles are numbered per open file */
};

struct handle {
	uint64_t id;
	uint64_t bytes;
	uint32_t space;			/* 0: never used, UINT32_MAX: removed */
	uint32_t device;
};

struct handle_table {
	struct handle *entries;
	uint32_t capacity;		/* a power of two */
	uint32_t filled;		/* removed ones included */
};

/* svm.c: address ranges that may move to VRAM, sorted and disjoint */
struct range {
	uint64_t start, end;
	uint64_t devices;		/* bit i: charged to device i of the lease */
};

struct range_list {
	struct range *items;
	uint32_t count, capacity;
};

/* One per process, in memory that the kernel wipes in a fork child: the child attaches for itself. */
struct hook {
	uint32_t lock;			/* futex: 0 free, 1 held, 2 held with others waiting */
	uint32_t phase;
	uint32_t said;
	uint32_t slot;			/* own slot + 1; 0: none yet */
	uint64_t signals;		/* that the thread inside the lock blocked itself */
	uint64_t own[MAX_DEVICES];	/* bytes of this process: the truth that its slot repeats */
	struct handle_table handles;
	struct range_list ranges, spare;
	uint64_t row[SLOTS];		/* buffer for one row of the usage file */
	struct limits limits;
};

/* state.c */
int process_is_secure(void);
struct hook *hook_get(void);
int hook_enter(struct hook *hook);
void hook_leave(struct hook *hook);
void hook_say(struct hook *hook, const char *what, const char *path, const char *then);
long write_unsignalled(int fd, const void *from, size_t size, int64_t offset, uint64_t blocked);

/* lease.c */
enum phase lease_find(struct limits *limits);

/* usage.c: all of these under hook_enter() */
enum effort { EFFORT_QUICK, EFFORT_LAST };
long usage_charge(struct hook *hook, const uint64_t add[MAX_DEVICES], enum effort effort);
void usage_credit(struct hook *hook, const uint64_t give[MAX_DEVICES]);
uint64_t usage_remaining(struct hook *hook, uint32_t device);

/* handles.c: the same */
int handles_reserve(struct handle_table *table);
void handles_put(struct handle_table *table, struct handle handle);
int handles_take(struct handle_table *table, uint32_t space, uint64_t id, struct handle *taken);
const struct handle *handles_find(const struct handle_table *table, uint32_t space, uint64_t id);
int handles_forget(struct handle_table *table, int (*gone)(const struct limits *, const struct handle *),
		   const struct limits *limits, uint64_t credit[MAX_DEVICES]);

/* svm.c: the same */
uint64_t svm_devices(const struct limits *limits, const struct kfd_svm *svm, uint32_t attributes);
int svm_names_other(const struct limits *limits, const struct kfd_svm *svm, uint32_t attributes);
int svm_plan(struct hook *hook, uint64_t start, uint64_t end, uint64_t devices, uint64_t add[MAX_DEVICES]);
void svm_accept(struct hook *hook);
void svm_drop(struct hook *hook, uint64_t start, uint64_t end, uint64_t credit[MAX_DEVICES]);
int svm_trim(struct hook *hook, uint64_t credit[MAX_DEVICES]);

/* devices.c */
int is_kfd(int fd);
int is_drm(int fd);
int device_of_gpu(const struct limits *limits, uint32_t gpu_id);
int device_of_file(const struct limits *limits, int fd);

/* cumask.c */
void cumask_map(const struct limits_device *device, const uint32_t *asked, uint32_t bits,
		uint32_t granted[MASK_WORDS]);

/* memory.c, queues.c: one function per call, returning what the kernel would */
long alloc_memory(struct hook *hook, int fd, unsigned long request, struct kfd_alloc_memory *alloc);
long gem_create(struct hook *hook, int fd, unsigned long request, union drm_gem_create *create);
long create_dumb(struct hook *hook, int fd, unsigned long request, struct drm_create_dumb *create);
long gem_op(struct hook *hook, int fd, unsigned long request, struct drm_gem_op *op);
long available_memory(struct hook *hook, int fd, unsigned long request, struct kfd_available_memory *answer);
long set_svm(struct hook *hook, int fd, unsigned long request, struct kfd_svm *svm);
long create_queue(struct hook *hook, int fd, unsigned long request, struct kfd_create_queue *queue);
long update_queue(struct hook *hook, int fd, unsigned long request, struct kfd_update_queue *update);
long set_cu_mask(struct hook *hook, int fd, unsigned long request, struct kfd_set_cu_mask *set);
long release(struct hook *hook, int fd, unsigned long request, void *argument, uint32_t space, uint64_t id);
void remember(struct hook *hook, struct handle handle);

/* text.c */
int text_equal(const char *a, const char *b, size_t size);
char *text_append(char *at, const char *end, const char *text);
char *text_append_number(char *at, const char *end, uint64_t number);

void *memset(void *to, int value, size_t size);
void *memcpy(void *restrict to, const void *restrict from, size_t size);

static inline uint64_t add_saturating(uint64_t a, uint64_t b)
{
	uint64_t sum;

	return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static inline uint64_t subtract_saturating(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static inline uint64_t whole_pages(uint64_t bytes)
{
	return add_saturating(bytes, PAGE_SIZE - 1) & ~(uint64_t)(PAGE_SIZE - 1);
}

#endif
