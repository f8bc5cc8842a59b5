// SPDX-License-Identifier: Apache-2.0
/*
 * The usage file: how much VRAM each process of the lease has, and the decision whether more fits.
 *
 * The file's mutex is a POSIX lock on a descriptor of this moment: the kernel drops it with its holder, and a fork
 * child does not inherit it. That a slot's process lives is an OFD lock whose only reference is a mapping that
 * nobody touches: it survives the program closing all its descriptors, and dies with the address space.
 *
 * A process repeats in its slot what it knows about itself (hook->own), so a slot that somebody overwrote is right
 * again at the next request. Every failure short of a missing file is a refusal.
 */
#include "hook.h"

#define MUTEX_WAIT_NANOSECONDS 1000000000u
#define MUTEX_FIRST_SLEEP 20000
#define MUTEX_LONGEST_SLEEP 1000000
/* How long after its death a process's memory may still be in use: the kernel frees it in the background. */
#define GRACE_NANOSECONDS 50000000
#define MODE_TYPE 0170000u
#define MODE_REGULAR 0100000u
#define MODE_OWNERS 0600u

static long set_lock(int fd, int command, int type, int64_t at)
{
	struct kernel_flock lock = { .type = (int16_t)type, .start = at, .length = 1 };

	return sys_fcntl(fd, command, &lock);
}

static int is_alive(int fd, uint32_t slot)
{
	struct kernel_flock lock = { .type = F_WRLCK, .start = LOCK_SLOT(slot), .length = 1 };

	return is_error(sys_fcntl(fd, F_OFD_GETLK, &lock)) || lock.type != F_UNLCK;
}

/* Other programs may hold the lock on purpose or be stopped with it: wait a second at most. */
static long lock_mutex(int fd)
{
	uint64_t deadline = 0;		/* most find it free, and need no clock */
	int64_t pause = MUTEX_FIRST_SLEEP;
	long failed;

	while ((failed = set_lock(fd, F_SETLK, F_WRLCK, LOCK_MUTEX)) == -EAGAIN || failed == -EACCES) {
		if (!deadline)
			deadline = now_nanoseconds() + MUTEX_WAIT_NANOSECONDS;
		else if (now_nanoseconds() > deadline)
			return -ETIMEDOUT;
		sleep_nanoseconds(pause);
		pause = pause * 2 > MUTEX_LONGEST_SLEEP ? MUTEX_LONGEST_SLEEP : pause * 2;
	}
	return failed;
}

/* A descriptor of the usage file. -EBADMSG: something else lies there, or its size is wrong. */
static long open_usage(const struct limits *limits)
{
	struct kernel_stat status;
	long fd = sys_open(limits->usage, O_RDWR | O_NOFOLLOW | O_NONBLOCK);

	if (is_error(fd))
		return fd;
	if (!sys_fstat((int)fd, &status) && (status.mode & MODE_TYPE) == MODE_REGULAR &&
	    status.size == USAGE_SIZE(limits->devices))
		return fd;
	sys_close((int)fd);
	return -EBADMSG;
}

static int64_t entry_offset(uint32_t device, uint32_t slot)
{
	return USAGE_ROWS + ((int64_t)device * SLOTS + slot) * (int64_t)sizeof(uint64_t);
}

static long write_entry(const struct hook *hook, int fd, uint32_t device, uint32_t slot, uint64_t bytes)
{
	long put = write_unsignalled(fd, &bytes, sizeof(bytes), entry_offset(device, slot), hook->signals);

	return put == sizeof(bytes) ? 0 : -EBADMSG;
}

static long read_row(int fd, uint32_t device, uint64_t row[SLOTS])
{
	return sys_pread(fd, row, USAGE_ROW_SIZE, entry_offset(device, 0)) == USAGE_ROW_SIZE ? 0 : -EBADMSG;
}

static int header_is_valid(int fd, const struct limits *limits)
{
	struct usage_header header;

	return sys_pread(fd, &header, sizeof(header), 0) == sizeof(header) &&
	       text_equal(header.magic, USAGE_MAGIC, MAGIC_SIZE) && header.version == FORMAT_VERSION &&
	       header.devices == limits->devices && header.slots == SLOTS && header.lease == limits->lease;
}

/* Mark the slots that hold bytes of any device. */
static long find_used(struct hook *hook, int fd, uint8_t used[SLOTS])
{
	memset(used, 0, SLOTS);
	for (uint32_t device = 0; device < hook->limits.devices; device++) {
		if (read_row(fd, device, hook->row))
			return -EBADMSG;
		for (uint32_t slot = 0; slot < SLOTS; slot++)
			used[slot] |= hook->row[slot] != 0;
	}
	return 0;
}

static long clear_slot(const struct hook *hook, int fd, uint32_t slot)
{
	for (uint32_t device = 0; device < hook->limits.devices; device++)
		if (write_entry(hook, fd, device, slot, 0))
			return -EBADMSG;
	return 0;
}

/* Lock a free slot: a clean one, else a dead process's. Returns its index, or -EUSERS. */
static long lock_slot(int fd, const uint8_t used[SLOTS])
{
	for (int want_used = 0; want_used <= 1; want_used++)
		for (uint32_t slot = 0; slot < SLOTS; slot++)
			if (used[slot] == want_used && !set_lock(fd, F_OFD_SETLK, F_WRLCK, LOCK_SLOT(slot)))
				return slot;
	return -EUSERS;
}

/*
 * Take a slot for this process, under the mutex. A fork by another thread between mmap and madvise lets the child
 * keep the slot alive until it ends or calls exec; the lease is then charged longer, never less.
 */
static long take_slot(struct hook *hook, int mutex)
{
	uint8_t used[SLOTS];
	long fd, slot, kept;

	if (!header_is_valid(mutex, &hook->limits) || find_used(hook, mutex, used))
		return -EBADMSG;
	fd = sys_open(hook->limits.usage, O_RDWR | O_NOFOLLOW | O_NONBLOCK);
	if (is_error(fd))
		return fd;
	slot = lock_slot((int)fd, used);
	if (slot >= 0) {
		kept = syscall6(__NR_mmap, 0, PAGE_SIZE, PROT_NONE, MAP_SHARED, fd, 0);
		if (is_error(kept))
			slot = kept;
		else if (is_error(sys_madvise((void *)kept, PAGE_SIZE, MADV_DONTFORK)))
			slot = -ENOMEM;
		else if (used[slot] && clear_slot(hook, mutex, (uint32_t)slot))
			slot = -EBADMSG;
		else
			hook->slot = (uint32_t)slot + 1;
	}
	/* Closing it also drops the POSIX mutex of this process: the caller takes it again. */
	sys_close((int)fd);
	return slot < 0 ? slot : 0;
}

/* Open the usage file and hold its mutex, with a slot of our own in it. Close the descriptor to let go. */
static long begin(struct hook *hook)
{
	long fd = open_usage(&hook->limits), failed;

	if (is_error(fd))
		return fd;
	failed = lock_mutex((int)fd);
	if (!failed && !hook->slot) {
		failed = take_slot(hook, (int)fd);
		if (!failed)
			failed = lock_mutex((int)fd);
	}
	if (!failed)
		return fd;
	sys_close((int)fd);
	return failed;
}

/* Bytes of `device` in use by the other processes. */
static long sum_others(struct hook *hook, int fd, uint32_t device, uint64_t *sum)
{
	if (read_row(fd, device, hook->row))
		return -EBADMSG;
	*sum = 0;
	for (uint32_t slot = 0; slot < SLOTS; slot++)
		if (slot + 1 != hook->slot)
			*sum = add_saturating(*sum, hook->row[slot]);
	return 0;
}

static int exceeds(const struct hook *hook, uint32_t device, uint64_t others, uint64_t add)
{
	uint64_t total = add_saturating(add_saturating(others, hook->own[device]), add);

	return total > hook->limits.device[device].limit_bytes;
}

/* 0: fits every device. -ENOMEM: does not. */
static long fits(struct hook *hook, int fd, const uint64_t add[MAX_DEVICES])
{
	for (uint32_t device = 0; device < hook->limits.devices; device++) {
		uint64_t others = 0;

		if (!add[device])
			continue;
		if (fd >= 0 && sum_others(hook, fd, device, &others))
			return -EBADMSG;
		if (exceeds(hook, device, others, add[device]))
			return -ENOMEM;
	}
	return 0;
}

/* Mark the slots whose process died with bytes charged; returns how many. */
static uint32_t find_dead(struct hook *hook, int fd, uint8_t dead[SLOTS])
{
	uint32_t count = 0;

	if (find_used(hook, fd, dead))
		return 0;
	for (uint32_t slot = 0; slot < SLOTS; slot++) {
		dead[slot] = dead[slot] && !is_alive(fd, slot);
		count += dead[slot];
	}
	return count;
}

/*
 * Clear what dead processes left. Their memory goes a moment after their lock, so it counts for that moment more.
 * Returns the descriptor to go on with, or the error that ended it.
 */
static long reclaim(struct hook *hook, long fd)
{
	uint8_t dead[SLOTS];

	if (!find_dead(hook, (int)fd, dead))
		return fd;
	sys_close((int)fd);
	sleep_nanoseconds(GRACE_NANOSECONDS);
	fd = begin(hook);
	if (is_error(fd))
		return fd;
	for (uint32_t slot = 0; slot < SLOTS; slot++)
		if (dead[slot] && !is_alive((int)fd, slot) && clear_slot(hook, (int)fd, slot))
			break;
	return fd;
}

static void count_denied(const struct hook *hook, int fd)
{
	const int64_t at = offsetof(struct usage_header, denied);
	uint64_t denied = 0;

	if (sys_pread(fd, &denied, sizeof(denied), at) == sizeof(denied)) {
		denied = add_saturating(denied, 1);
		write_unsignalled(fd, &denied, sizeof(denied), at, hook->signals);
	}
}

/* Write our own entries of the devices that `change` names. */
static long write_own(const struct hook *hook, int fd, const uint64_t change[MAX_DEVICES])
{
	for (uint32_t device = 0; device < hook->limits.devices; device++)
		if (change[device] && write_entry(hook, fd, device, hook->slot - 1, hook->own[device]))
			return -EBADMSG;
	return 0;
}

static void own_add(struct hook *hook, const uint64_t add[MAX_DEVICES])
{
	for (uint32_t device = 0; device < MAX_DEVICES; device++)
		hook->own[device] = add_saturating(hook->own[device], add[device]);
}

static void own_subtract(struct hook *hook, const uint64_t give[MAX_DEVICES])
{
	for (uint32_t device = 0; device < MAX_DEVICES; device++)
		hook->own[device] = subtract_saturating(hook->own[device], give[device]);
}

/* Not there, or another's: in a sandbox, or for a second user. One that its holder closed is neither. */
static int is_out_of_reach(const struct limits *limits, long why)
{
	struct kernel_stat status;

	if (why == -ENOENT || why == -ENOTDIR)
		return 1;
	return (why == -EACCES || why == -EPERM) &&
	       (sys_stat(limits->usage, &status) || (status.mode & MODE_OWNERS) == MODE_OWNERS);
}

/* The file is not there or not ours to open; the lease says what follows. Anything else is a refusal. */
static long without_file(struct hook *hook, long why, const uint64_t add[MAX_DEVICES])
{
	const int is_missing = is_out_of_reach(&hook->limits, why);
	const int is_strict = !!(hook->limits.flags & LIMITS_STRICT);

	if (!is_missing || is_strict) {
		hook_say(hook,
			 is_missing ? "cannot be opened" :
				      "damaged, held by another program, or no descriptor is left",
			 hook->limits.usage, "VRAM is refused");
		return -ENOMEM;
	}
	hook_say(hook, "cannot be opened", hook->limits.usage, "this process is counted alone");
	if (fits(hook, -1, add))
		return -ENOMEM;
	own_add(hook, add);
	return 0;
}

/*
 * Charge `add` bytes by device, all or nothing: 0 or -ENOMEM. EFFORT_QUICK refuses at once when over the limit, so
 * that the caller can give back what it no longer has; EFFORT_LAST reclaims what the dead left, and counts the
 * refusal.
 */
long usage_charge(struct hook *hook, const uint64_t add[MAX_DEVICES], enum effort effort)
{
	long fd = begin(hook), failed;

	if (is_error(fd))
		return without_file(hook, fd, add);
	failed = fits(hook, (int)fd, add);
	if (failed == -ENOMEM && effort == EFFORT_LAST) {
		fd = reclaim(hook, fd);
		if (is_error(fd))
			return without_file(hook, fd, add);
		failed = fits(hook, (int)fd, add);
		if (failed)
			count_denied(hook, (int)fd);
	}
	if (!failed) {
		own_add(hook, add);
		failed = write_own(hook, (int)fd, add);
		if (failed) {
			own_subtract(hook, add);
			hook_say(hook, "cannot be written (ulimit -f?)", hook->limits.usage, "VRAM is refused");
		}
	}
	sys_close((int)fd);
	return failed ? -ENOMEM : 0;
}

/* Give back. What cannot be written now is written with the next change. */
void usage_credit(struct hook *hook, const uint64_t give[MAX_DEVICES])
{
	long fd;

	own_subtract(hook, give);
	fd = begin(hook);
	if (is_error(fd))
		return;
	write_own(hook, (int)fd, give);
	sys_close((int)fd);
}

/* Bytes of `device` that the lease may still take; 0 where that cannot be said. */
uint64_t usage_remaining(struct hook *hook, uint32_t device)
{
	uint64_t others = 0, limit = hook->limits.device[device].limit_bytes;
	long fd = begin(hook);
	long failed = is_error(fd) ? fd : sum_others(hook, (int)fd, device, &others);
	const uint64_t nothing[MAX_DEVICES] = { 0 };

	if (!is_error(fd))
		sys_close((int)fd);
	if (failed && without_file(hook, failed, nothing))
		return 0;
	return subtract_saturating(limit, add_saturating(others, hook->own[device]));
}
