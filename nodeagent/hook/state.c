// SPDX-License-Identifier: Apache-2.0
/*
 * The process's state, and the lock around it. Both survive what programs do: a fork while another thread holds
 * the lock, signals in the midst, threads.
 */
#include "hook.h"

#define LOCK_WAIT_NANOSECONDS 1000000000u
#define AT_SECURE 23

/* Weak and without a version: whichever C library the program has resolves it. */
extern unsigned long getauxval(unsigned long type) __attribute__((weak));

static struct hook *state;
/* Stands in where there is no memory for a state, or no kernel support: nothing is granted. */
static struct hook broken;

/*
 * Setuid, setgid and capability programs act for others than the one who started them: no business of a lease.
 * The ids are compared as well, for the C library that cannot tell.
 */
int process_is_secure(void)
{
	if (getauxval && getauxval(AT_SECURE))
		return 1;
	return syscall4(__NR_getuid, 0, 0, 0, 0) != syscall4(__NR_geteuid, 0, 0, 0, 0) ||
	       syscall4(__NR_getgid, 0, 0, 0, 0) != syscall4(__NR_getegid, 0, 0, 0, 0);
}

/* The page that a fork child finds wiped; made by the first thread that needs it. */
static struct hook *state_page(void)
{
	struct hook *have = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
	struct hook *mine;

	if (have)
		return have;
	mine = map_memory(sizeof(*mine));
	if (!mine)
		return NULL;
	if (is_error(sys_madvise(mine, sizeof(*mine), MADV_WIPEONFORK))) {	/* Linux before 4.14 */
		unmap_memory(mine, sizeof(*mine));
		return NULL;
	}
	if (__atomic_compare_exchange_n(&state, &have, mine, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return mine;
	unmap_memory(mine, sizeof(*mine));
	return have;
}

static long futex(uint32_t *word, int operation, uint32_t value, int64_t nanoseconds)
{
	int64_t time[2] = { 0, nanoseconds };

	return syscall4(__NR_futex, (long)word, operation | FUTEX_PRIVATE_FLAG, value,
			operation == FUTEX_WAIT ? (long)time : 0);
}

/* Returns 0, or -ETIMEDOUT after a second: then something is badly wrong, and a refusal beats a hang. */
static int lock(uint32_t *word)
{
	uint64_t deadline = 0;
	uint32_t expected = 0;

	if (__atomic_compare_exchange_n(word, &expected, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		return 0;
	while (__atomic_exchange_n(word, 2, __ATOMIC_ACQUIRE) != 0) {
		if (!deadline)
			deadline = now_nanoseconds() + LOCK_WAIT_NANOSECONDS;
		else if (now_nanoseconds() > deadline)
			return -ETIMEDOUT;
		futex(word, FUTEX_WAIT, 2, LOCK_WAIT_NANOSECONDS / 10);
	}
	return 0;
}

static void unlock(uint32_t *word)
{
	if (__atomic_exchange_n(word, 0, __ATOMIC_RELEASE) == 2)
		futex(word, FUTEX_WAKE, 1, 0);
}

/* Returns those that were blocked before. */
static uint64_t signals_block(void)
{
	const uint64_t set = SIGNALS_KEPT_OUT;
	uint64_t old = 0;

	syscall4(__NR_rt_sigprocmask, SIG_SETMASK, (long)&set, (long)&old, sizeof(set));
	return old;
}

static void signals_restore(uint64_t old)
{
	syscall4(__NR_rt_sigprocmask, SIG_SETMASK, (long)&old, 0, sizeof(old));
}

static uint64_t pending_signals(void)
{
	uint64_t pending = 0;

	syscall4(__NR_rt_sigpending, (long)&pending, sizeof(pending), 0, 0);
	return pending;
}

/*
 * Write, at `offset` unless that is negative, with signals blocked. At a closed pipe or the program's file size limit
 * the kernel sends a signal that ends the program: the write is ours and not the program's, so it is taken back. One
 * of those that the program blocked before may be pending already, and is its own.
 */
long write_unsignalled(int fd, const void *from, size_t size, int64_t offset, uint64_t blocked)
{
	const uint64_t sent = SIGNAL_BIT(SIGPIPE) | SIGNAL_BIT(SIGXFSZ);
	const uint64_t ours = blocked & sent ? sent & ~pending_signals() : sent;
	const int64_t now[2] = { 0, 0 };
	long result = offset < 0 ? sys_write(fd, from, size) : sys_pwrite(fd, from, size, offset);

	if ((result == -EPIPE || result == -EFBIG) && ours)
		syscall4(__NR_rt_sigtimedwait, (long)&ours, 0, (long)now, sizeof(ours));
	return result;
}

/*
 * Enter the process's own critical section. Signals stay out of it, so that neither a handler nor a thread's
 * cancellation leaves it locked. They are let in while the driver works: it may wait, and Ctrl-C is to end that.
 */
int hook_enter(struct hook *hook)
{
	const uint64_t signals = signals_block();
	const int failed = lock(&hook->lock);

	if (failed)
		signals_restore(signals);
	else
		hook->signals = signals;
	return failed;
}

void hook_leave(struct hook *hook)
{
	const uint64_t signals = hook->signals;

	unlock(&hook->lock);
	signals_restore(signals);
}

static enum phase find_lease(struct hook *hook)
{
	enum phase phase;

	if (hook_enter(hook))
		return PHASE_BROKEN;
	if (!hook->phase) {
		phase = lease_find(&hook->limits);
		if (phase == PHASE_GONE)
			hook_say(hook, "the lease's limits are not there: has it ended, or are they hidden?",
				 hook->limits.usage, "no VRAM is granted");
		else if (phase == PHASE_BROKEN)
			hook_say(hook, "limits are not root's, or damaged", hook->limits.usage,
				 "no VRAM is granted");
		__atomic_store_n(&hook->phase, phase, __ATOMIC_RELEASE);
	}
	phase = hook->phase;
	hook_leave(hook);
	return phase;
}

/* This process's state, its lease looked up the first time; NULL where the hook has nothing to do. */
struct hook *hook_get(void)
{
	static int secure;		/* 0 unknown, 1 no, 2 yes; the same in fork children */
	struct hook *hook;
	enum phase phase;

	if (!secure)
		secure = process_is_secure() ? 2 : 1;
	if (secure == 2)
		return NULL;
	hook = state_page();
	if (!hook) {
		broken.phase = PHASE_BROKEN;
		return &broken;
	}
	phase = __atomic_load_n(&hook->phase, __ATOMIC_ACQUIRE);
	if (phase == PHASE_UNKNOWN)
		phase = find_lease(hook);
	return phase == PHASE_NO_LEASE ? NULL : hook;
}

/* One line on stderr, once a process, if it can be written now: who does not read it must not stop the program. */
void hook_say(struct hook *hook, const char *what, const char *path, const char *then)
{
	struct { int32_t fd; int16_t wanted, is; } ready = { 2, POLLOUT, 0 };
	char line[512], *at = line;
	const char *end = line + sizeof(line);
	uint64_t blocked;

	if (__atomic_exchange_n(&hook->said, 1, __ATOMIC_RELAXED))
		return;
	at = text_append(at, end, "gpulease hook: ");
	at = text_append(at, end, path);
	at = text_append(at, end, ": ");
	at = text_append(at, end, what);
	at = text_append(at, end, "; ");
	at = text_append(at, end, then);
	at = text_append(at, end, "\n");
	blocked = signals_block();
	if (syscall4(__NR_poll, (long)&ready, 1, 0, 0) == 1 && ready.is & POLLOUT)
		write_unsignalled(2, line, (size_t)(at - line), -1, blocked);
	signals_restore(blocked);
}
