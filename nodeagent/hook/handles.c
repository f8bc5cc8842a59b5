// SPDX-License-Identifier: Apache-2.0
/*
 * What this process allocated, by the kernel's handle: freeing names only that. A hash table with open addressing
 * in memory of its own, which fork children do not get. The same key may be there twice: each removal takes one.
 */
#include "hook.h"

#define FIRST_CAPACITY 1024u
#define REMOVED UINT32_MAX

static uint32_t first_place(const struct handle_table *table, uint32_t space, uint64_t id)
{
	uint64_t hash = (id ^ (uint64_t)space << 32) * 0x9e3779b97f4a7c15u;

	return (uint32_t)(hash >> 32) & (table->capacity - 1);
}

static void insert(struct handle_table *table, struct handle handle)
{
	uint32_t at = first_place(table, handle.space, handle.id);

	while (table->entries[at].space && table->entries[at].space != REMOVED)
		at = (at + 1) & (table->capacity - 1);
	table->filled += !table->entries[at].space;
	table->entries[at] = handle;
}

static uint32_t living(const struct handle_table *table)
{
	uint32_t count = 0;

	for (uint32_t at = 0; at < table->capacity; at++)
		count += table->entries[at].space && table->entries[at].space != REMOVED;
	return count;
}

/* Make sure that one more fits, before the kernel is asked for what cannot be undone. Returns 0 or -ENOMEM. */
int handles_reserve(struct handle_table *table)
{
	struct handle_table next = { 0 };
	size_t size;

	/* Several threads may each have reserved one: leave room for more threads than there are. */
	if (table->capacity && table->filled < table->capacity / 2)
		return 0;
	next.capacity = FIRST_CAPACITY;
	while (next.capacity / 4 <= living(table))
		next.capacity *= 2;
	size = next.capacity * sizeof(struct handle);
	next.entries = map_memory(size);
	if (!next.entries)
		return -ENOMEM;
	sys_madvise(next.entries, size, MADV_DONTFORK);
	for (uint32_t at = 0; at < table->capacity; at++)
		if (table->entries[at].space && table->entries[at].space != REMOVED)
			insert(&next, table->entries[at]);
	unmap_memory(table->entries, table->capacity * sizeof(struct handle));
	*table = next;
	return 0;
}

void handles_put(struct handle_table *table, struct handle handle)
{
	if (!handles_reserve(table) || table->filled + 1 < table->capacity)
		insert(table, handle);
	/* else there is no memory: it stays charged until the process ends */
}

static struct handle *find(const struct handle_table *table, uint32_t space, uint64_t id)
{
	uint32_t at;

	if (!table->capacity)
		return NULL;
	for (at = first_place(table, space, id); table->entries[at].space; at = (at + 1) & (table->capacity - 1))
		if (table->entries[at].space == space && table->entries[at].id == id)
			return &table->entries[at];
	return NULL;
}

const struct handle *handles_find(const struct handle_table *table, uint32_t space, uint64_t id)
{
	return find(table, space, id);
}

/* Remove one; returns whether there was one. */
int handles_take(struct handle_table *table, uint32_t space, uint64_t id, struct handle *taken)
{
	struct handle *at = find(table, space, id);

	if (!at)
		return 0;
	*taken = *at;
	at->space = REMOVED;
	return 1;
}

/* Remove all that are `gone`, adding their bytes to `credit`; returns whether there were any. */
int handles_forget(struct handle_table *table, int (*gone)(const struct limits *, const struct handle *),
		   const struct limits *limits, uint64_t credit[MAX_DEVICES])
{
	int any = 0;

	for (uint32_t at = 0; at < table->capacity; at++) {
		struct handle *entry = &table->entries[at];

		if (!entry->space || entry->space == REMOVED || !gone(limits, entry))
			continue;
		credit[entry->device] = add_saturating(credit[entry->device], entry->bytes);
		entry->space = REMOVED;
		any = 1;
	}
	return any;
}
