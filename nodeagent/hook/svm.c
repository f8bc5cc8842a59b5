// SPDX-License-Identifier: Apache-2.0
/*
 * Shared virtual memory (hipMallocManaged): its pages move to VRAM on demand and without an allocation, so each
 * range with attributes is charged whole, once per device, as an upper bound. Nothing tells when a program unmaps a
 * range: at the limit, what is no longer mapped is given back.
 *
 * A change is built in hook->spare and then swapped in, so a refusal leaves everything as it was.
 */
#include "hook.h"

#define FIRST_CAPACITY 256u

/* Whether an attribute names a GPU. A location may be system memory, 0, or none: KFD_IOCTL_SVM_LOCATION_*. */
static int names_gpu(const struct kfd_svm_attribute *attribute)
{
	switch (attribute->type) {
	case SVM_PREFERRED_LOCATION:
	case SVM_PREFETCH_LOCATION:
		return attribute->value != 0 && attribute->value != UINT32_MAX;
	case SVM_ACCESS:
	case SVM_ACCESS_IN_PLACE:
		return 1;
	}
	return 0;
}

/* The devices that the first `attributes` name as a place or with access: a set by index in the lease, maybe empty. */
uint64_t svm_devices(const struct limits *limits, const struct kfd_svm *svm, uint32_t attributes)
{
	uint64_t devices = 0;

	for (uint32_t i = 0; i < attributes; i++) {
		const int device = device_of_gpu(limits, svm->attribute[i].value);

		if (names_gpu(&svm->attribute[i]) && device >= 0)
			devices |= 1ULL << device;
	}
	return devices;
}

/* Whether the attributes name a GPU that is not leased. */
int svm_names_other(const struct limits *limits, const struct kfd_svm *svm, uint32_t attributes)
{
	for (uint32_t i = 0; i < attributes; i++)
		if (names_gpu(&svm->attribute[i]) && device_of_gpu(limits, svm->attribute[i].value) < 0)
			return 1;
	return 0;
}

static int reserve(struct range_list *list, uint32_t capacity)
{
	struct range_list next = { 0 };
	size_t size;

	if (list->capacity >= capacity)
		return 0;
	next.capacity = list->capacity ? list->capacity : FIRST_CAPACITY;
	while (next.capacity < capacity)
		next.capacity *= 2;
	size = next.capacity * sizeof(struct range);
	next.items = map_memory(size);
	if (!next.items)
		return -ENOMEM;
	sys_madvise(next.items, size, MADV_DONTFORK);
	for (; next.count < list->count; next.count++)
		next.items[next.count] = list->items[next.count];
	unmap_memory(list->items, list->capacity * sizeof(struct range));
	*list = next;
	return 0;
}

/* Append, joining what touches and is charged alike. There is room: the caller reserved it. */
static void append(struct range_list *list, uint64_t start, uint64_t end, uint64_t devices)
{
	struct range *last = list->count ? &list->items[list->count - 1] : NULL;

	if (start >= end || !devices)
		return;
	if (last && last->end == start && last->devices == devices)
		last->end = end;
	else
		list->items[list->count++] = (struct range){ start, end, devices };
}

static void add_for(uint64_t bytes[MAX_DEVICES], uint64_t devices, uint64_t size)
{
	for (uint32_t device = 0; device < MAX_DEVICES; device++)
		if (devices >> device & 1)
			bytes[device] = add_saturating(bytes[device], size);
}

static uint64_t every_device(const struct limits *limits)
{
	return limits->devices == MAX_DEVICES ? UINT64_MAX : (1ULL << limits->devices) - 1;
}

/*
 * Plan to charge [start, end) to `devices`; with none, what is charged stays as it is and the rest goes to every
 * device of the lease. `add` gets the new bytes by device. Returns -ENOMEM, 1 when nothing of the range was charged
 * before, else 0. svm_accept() makes it so.
 */
int svm_plan(struct hook *hook, uint64_t start, uint64_t end, uint64_t devices, uint64_t add[MAX_DEVICES])
{
	const uint64_t fresh = devices ? devices : every_device(&hook->limits);
	struct range_list *plan = &hook->spare;
	uint64_t at = start;
	uint32_t i = 0;
	int untouched = 1;

	memset(add, 0, MAX_DEVICES * sizeof(*add));
	if (reserve(plan, 2 * hook->ranges.count + 3))
		return -ENOMEM;
	plan->count = 0;
	for (; i < hook->ranges.count && hook->ranges.items[i].end <= start; i++)
		append(plan, hook->ranges.items[i].start, hook->ranges.items[i].end,
		       hook->ranges.items[i].devices);
	for (; i < hook->ranges.count && hook->ranges.items[i].start < end; i++) {
		const struct range old = hook->ranges.items[i];
		const uint64_t from = old.start > start ? old.start : start;
		const uint64_t to = old.end < end ? old.end : end;

		untouched = 0;
		append(plan, old.start, from, old.devices);
		append(plan, at, from, fresh);
		add_for(add, fresh, from - at);
		append(plan, from, to, old.devices | devices);
		add_for(add, devices & ~old.devices, to - from);
		append(plan, to, old.end, old.devices);
		at = to;
	}
	if (at < end) {
		append(plan, at, end, fresh);
		add_for(add, fresh, end - at);
	}
	for (; i < hook->ranges.count; i++)
		append(plan, hook->ranges.items[i].start, hook->ranges.items[i].end,
		       hook->ranges.items[i].devices);
	return untouched;
}

void svm_accept(struct hook *hook)
{
	const struct range_list planned = hook->spare;

	hook->spare = hook->ranges;
	hook->ranges = planned;
}

/* Forget [start, end); `credit` gets its bytes by device. */
void svm_drop(struct hook *hook, uint64_t start, uint64_t end, uint64_t credit[MAX_DEVICES])
{
	struct range_list *plan = &hook->spare;

	if (reserve(plan, hook->ranges.count + 1))
		return;		/* stays charged */
	plan->count = 0;
	for (uint32_t i = 0; i < hook->ranges.count; i++) {
		const struct range old = hook->ranges.items[i];
		const uint64_t from = old.start > start ? old.start : start;
		const uint64_t to = old.end < end ? old.end : end;

		if (from >= to) {
			append(plan, old.start, old.end, old.devices);
			continue;
		}
		append(plan, old.start, from, old.devices);
		append(plan, to, old.end, old.devices);
		add_for(credit, old.devices, to - from);
	}
	svm_accept(hook);
}

/* Reads /proc/self/maps piece by piece. */
struct maps {
	int fd;
	uint32_t have, at;
	char buffer[2048];
};

static int next_letter(struct maps *maps)
{
	if (maps->at == maps->have) {
		long got = sys_read(maps->fd, maps->buffer, sizeof(maps->buffer));

		if (got <= 0)
			return is_error(got) ? -EIO : 0;
		maps->have = (uint32_t)got;
		maps->at = 0;
	}
	return (unsigned char)maps->buffer[maps->at++];
}

static int next_number(struct maps *maps, char stop, uint64_t *number)
{
	int letter;

	*number = 0;
	while ((letter = next_letter(maps)) > 0 && letter != stop)
		*number = *number << 4 | (uint64_t)(letter <= '9' ? letter - '0' : letter - 'a' + 10);
	return letter;
}

/* The next mapped area: 1, 0 at the end, or -EIO. */
static int next_area(struct maps *maps, uint64_t *start, uint64_t *end)
{
	int letter = next_number(maps, '-', start);

	if (letter > 0)
		letter = next_number(maps, ' ', end);
	if (letter <= 0)
		return letter;
	while ((letter = next_letter(maps)) > 0 && letter != '\n')
		;
	return letter < 0 ? letter : 1;
}

static void total(const struct range_list *list, uint64_t bytes[MAX_DEVICES])
{
	memset(bytes, 0, MAX_DEVICES * sizeof(*bytes));
	for (uint32_t i = 0; i < list->count; i++)
		add_for(bytes, list->items[i].devices, list->items[i].end - list->items[i].start);
}

/* Build in hook->spare what of the ranges is still mapped. Returns 0, or an error: then nothing is known. */
static int keep_mapped(struct hook *hook, struct maps *maps)
{
	const struct range_list *ranges = &hook->ranges;
	uint64_t start, end;
	uint32_t first = 0;
	int more;

	hook->spare.count = 0;
	while ((more = next_area(maps, &start, &end)) > 0) {
		while (first < ranges->count && ranges->items[first].end <= start)
			first++;
		for (uint32_t i = first; i < ranges->count && ranges->items[i].start < end; i++) {
			const struct range old = ranges->items[i];

			if (reserve(&hook->spare, hook->spare.count + 1))
				return -ENOMEM;
			append(&hook->spare, old.start > start ? old.start : start,
			       old.end < end ? old.end : end, old.devices);
		}
	}
	return more;
}

/* Forget what is no longer mapped, adding its bytes to `credit`; returns whether there was any. */
int svm_trim(struct hook *hook, uint64_t credit[MAX_DEVICES])
{
	uint64_t before[MAX_DEVICES], after[MAX_DEVICES];
	struct maps maps = { 0 };
	int failed, any = 0;
	long fd;

	if (!hook->ranges.count)
		return 0;
	fd = sys_open("/proc/self/maps", O_RDONLY);
	if (is_error(fd))
		return 0;
	maps.fd = (int)fd;
	failed = keep_mapped(hook, &maps);
	sys_close((int)fd);
	if (failed)
		return 0;
	total(&hook->ranges, before);
	total(&hook->spare, after);
	for (uint32_t device = 0; device < MAX_DEVICES; device++) {
		credit[device] = add_saturating(credit[device], before[device] - after[device]);
		any |= before[device] != after[device];
	}
	svm_accept(hook);
	return any;
}
