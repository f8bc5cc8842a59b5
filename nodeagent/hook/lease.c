// SPDX-License-Identifier: Apache-2.0
/*
 * Which lease this process belongs to, and its limits. Looked for in places that only root can write; the
 * environment is asked last, and then only for the name of a file that must be root's as well.
 */
#include "hook.h"
#include "priority.h"

#define FIXED_PATH "/etc/gpulease/limits"
#define HOOK_ROOT "/run/nodeagent/hook/"
#define VARIABLE "GPULEASE_HOOK="
#define VARIABLE_SIZE (sizeof(VARIABLE) - 1)
#define STEM "gpulease"
#define STEM_SIZE (sizeof(STEM) - 1)
#define SCRATCH_SIZE 65536u
#define LONGEST_PATH 256u
#define OVERFLOW_UID 65534u	/* /proc/sys/kernel/overflowuid, which nobody changes */

#define MODE_TYPE 0170000u
#define MODE_REGULAR 0100000u
#define MODE_OTHERS_WRITE 0022u

static int is_valid(const struct limits *limits, int64_t size)
{
	if (size < (int64_t)LIMITS_SIZE(1) || !text_equal(limits->magic, LIMITS_MAGIC, MAGIC_SIZE) ||
	    limits->version != FORMAT_VERSION || limits->slots != SLOTS)
		return 0;
	if (limits->devices < 1 || limits->devices > MAX_DEVICES ||
	    size != (int64_t)LIMITS_SIZE(limits->devices) || limits->size != size)
		return 0;
	if (limits->usage[0] != '/' || limits->usage[PATH_SIZE - 1])
		return 0;
	for (uint32_t i = 0; i < limits->devices; i++) {
		const struct limits_device *device = &limits->device[i];

		if (device->unit < 1 || device->unit > 2 || device->mask_bits > MASK_WORDS * 32 ||
		    device->queue_level > PRIORITY_MAX + 1)
			return 0;
	}
	return 1;
}

/* The whole of a file of /proc, as far as it fits: bytes, or the error of opening it. */
static long read_whole(const char *path, char *to, size_t size)
{
	size_t have = 0;
	long fd = sys_open(path, O_RDONLY), got;

	if (is_error(fd))
		return fd;
	while (have < size && (got = sys_read((int)fd, to + have, size - have)) > 0)
		have += (size_t)got;
	sys_close((int)fd);
	return (long)have;
}

/*
 * In a user namespace that does not map root, root's files show as the overflow uid's. Whoever made the namespace could
 * as well have mapped itself to root, so nothing is lost by believing that; refusing would stop every such sandbox.
 */
static int is_unmapped_root(uint32_t uid)
{
	const char whole_map[] = "4294967295";
	const size_t length = sizeof(whole_map) - 1;
	char map[256];
	long size;

	if (uid != OVERFLOW_UID)
		return 0;
	size = read_whole("/proc/self/uid_map", map, sizeof(map));
	for (long at = 0; at + (long)length <= size; at++)
		if (text_equal(map + at, whole_map, length))
			return 0;
	return size > 0;
}

static int is_roots(const struct kernel_stat *status)
{
	return (status->mode & MODE_TYPE) == MODE_REGULAR && !(status->mode & MODE_OTHERS_WRITE) &&
	       (status->uid == 0 || is_unmapped_root(status->uid));
}

/* No descriptor is left, which may be otherwise at the next call. */
static int is_passing(long error)
{
	return error == -EMFILE || error == -ENFILE;
}

/* PHASE_NO_LEASE: there is no such file. PHASE_BROKEN: there is, and it is not to be trusted. */
static enum phase read_limits(const char *path, struct limits *limits)
{
	struct kernel_stat status;
	enum phase phase = PHASE_BROKEN;
	long fd = sys_open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);

	if (fd == -ENOENT || fd == -ENOTDIR)
		return PHASE_NO_LEASE;
	if (is_passing(fd))
		return PHASE_UNKNOWN;
	if (!is_error(fd)) {
		if (!sys_fstat((int)fd, &status) && is_roots(&status) &&
		    sys_pread((int)fd, limits, sizeof(*limits), 0) == status.size &&
		    is_valid(limits, status.size))
			phase = PHASE_LEASED;
		sys_close((int)fd);
	}
	if (phase == PHASE_BROKEN)	/* for the message */
		text_append(limits->usage, limits->usage + PATH_SIZE, path);
	return phase;
}

static int is_stem_letter(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/*
 * "gpulease-7.slice" or "gpulease_1f2e-7.slice": the sizes of stem and id, or 0. An agent's own slice,
 * "gpulease.slice", is no lease's.
 */
static int parse_component(const char *name, size_t size, size_t *stem, size_t *id)
{
	const char suffix[] = ".slice";
	const size_t suffix_size = sizeof(suffix) - 1;
	size_t at = STEM_SIZE;

	if (size < STEM_SIZE + suffix_size + 2 || !text_equal(name, STEM, STEM_SIZE) ||
	    !text_equal(name + size - suffix_size, suffix, suffix_size))
		return 0;
	size -= suffix_size;
	if (name[at] == '_')
		for (at++; at < size && is_stem_letter(name[at]); at++)
			;
	if (at >= size || name[at] != '-')
		return 0;
	*stem = at++;
	*id = size - at;
	if (*id < 1 || *id > 19)
		return 0;
	for (; at < size; at++)
		if (name[at] < '0' || name[at] > '9')
			return 0;
	return 1;
}

/* The limits path of the innermost lease's cgroup in `path`; 0 if there is none. */
static int path_of_cgroup(const char *cgroup, size_t size, char path[LONGEST_PATH])
{
	const char *end = path + LONGEST_PATH;

	while (size) {
		size_t start = size, stem, id;

		while (start && cgroup[start - 1] != '/')
			start--;
		if (parse_component(cgroup + start, size - start, &stem, &id)) {
			char stem_text[64], id_text[24];

			if (stem >= sizeof(stem_text))
				return 0;
			memcpy(stem_text, cgroup + start, stem);
			stem_text[stem] = '\0';
			memcpy(id_text, cgroup + start + stem + 1, id);
			id_text[id] = '\0';
			path = text_append(path, end, HOOK_ROOT);
			path = text_append(path, end, stem_text);
			path = text_append(path, end, "/");
			path = text_append(path, end, id_text);
			text_append(path, end, "/limits");
			return 1;
		}
		size = start ? start - 1 : 0;
	}
	return 0;
}

static enum phase by_cgroup(struct limits *limits, char *scratch)
{
	char path[LONGEST_PATH];
	const long got = read_whole("/proc/self/cgroup", scratch, SCRATCH_SIZE);
	const size_t size = is_error(got) ? 0 : (size_t)got;
	enum phase phase = PHASE_NO_LEASE;

	if (is_error(got) && got != -ENOENT)	/* whose process it is cannot be told */
		return is_passing(got) ? PHASE_UNKNOWN : PHASE_BROKEN;
	for (size_t start = 0, end; start < size; start = end + 1) {
		for (end = start; end < size && scratch[end] != '\n'; end++)
			;
		if (end - start < 3 || !text_equal(scratch + start, "0::", 3))
			continue;	/* a hierarchy of version 1 */
		if (path_of_cgroup(scratch + start + 3, end - start - 3, path))
			phase = read_limits(path, limits);
	}
	return phase;
}

/* What VARIABLE said when the library was loaded; fork children inherit it. Empty: it was not set. */
static char named[LONGEST_PATH];

/* Weak and without a version: whichever C library the program has resolves it. */
extern char **environ __attribute__((weak));

static int starts_with(const char *text, const char *start)
{
	while (*start && *text == *start)
		text++, start++;
	return !*start;
}

/*
 * Before the program runs: programs write over their environment to rename themselves (setproctitle), and then
 * /proc/self/environ tells nothing. The C library has started by then, for what needs nothing starts last.
 */
__attribute__((constructor)) static void remember_variable(void)
{
	if (process_is_secure())
		return;
	if (!&environ || !environ)
		return;
	for (char **entry = environ; *entry && !named[0]; entry++)
		if (starts_with(*entry, VARIABLE))
			text_append(named, named + sizeof(named), *entry + VARIABLE_SIZE);
}

/* The agent sets the variable for a lease that has limits. Where they are not to be found nothing is granted. */
static enum phase by_environment(struct limits *limits)
{
	enum phase phase;

	if (!named[0])
		return PHASE_NO_LEASE;
	phase = read_limits(named, limits);
	if (phase != PHASE_NO_LEASE)
		return phase;
	text_append(limits->usage, limits->usage + PATH_SIZE, named);	/* for the message */
	return PHASE_GONE;
}

enum phase lease_find(struct limits *limits)
{
	enum phase phase = read_limits(FIXED_PATH, limits);
	char *scratch;

	if (phase != PHASE_NO_LEASE)
		return phase;
	scratch = map_memory(SCRATCH_SIZE);
	if (!scratch)
		return PHASE_BROKEN;
	phase = by_cgroup(limits, scratch);
	if (phase == PHASE_NO_LEASE)
		phase = by_environment(limits);
	unmap_memory(scratch, SCRATCH_SIZE);
	return phase;
}
