// SPDX-License-Identifier: Apache-2.0
/*
 * The lease's VRAM: the kernel's counters of every process that was ever notified, and beside them what those
 * do not show: sizes let through whose ioctl may not have returned; ranges of shared virtual memory that were sent to
 * the device (until they are unmapped); and what may outlive the process that took it, because others may hold the
 * file that it hangs on: GEM buffers, and all of a process that exports memory (until nobody is left to ask).
 * Whatever is doubtful counts; what is over is looked at again before it is refused. A full table refuses.
 */
#include "supervisor.h"

#include <string.h>

#define MAX_PROCESSES 1024
#define MAX_PENDING 4096
#define MAX_RANGES 4096

static struct process {
	pid_t pid;
	uint64_t start_time;
	struct counters counters;
	bool exporter;
	uint64_t kept[MAX_DEVICES];	/* an exporter's: all that it had then and was given since */
} processes[MAX_PROCESSES];
static size_t process_count;

static uint64_t residue[MAX_DEVICES];

static struct pending {
	pid_t process, thread;
	uint32_t device;
	uint64_t size;
} pending[MAX_PENDING];
static size_t pending_count;

static struct range {
	pid_t process;
	uint32_t device;
	uint64_t start, end;
} ranges[MAX_RANGES];
static size_t range_count;

static uint64_t used(const struct supervised *lease, uint32_t device)
{
	uint64_t total = residue[device];

	for (size_t i = 0; i < pending_count; i++)
		total += pending[i].device == device ? pending[i].size : 0;
	for (size_t i = 0; i < range_count; i++)
		total += ranges[i].device == device ? ranges[i].end - ranges[i].start : 0;
	for (size_t i = 0; i < process_count; i++) {
		const uint64_t now = counters_read(lease, &processes[i].counters, processes[i].pid, device);

		total += now > processes[i].kept[device] ? now : processes[i].kept[device];
	}
	return total;
}

static struct process *find(pid_t pid)
{
	for (size_t i = 0; i < process_count; i++)
		if (processes[i].pid == pid)
			return &processes[i];
	return NULL;
}

/* Unseen mappings are a process's whose threads have all ended: gone, unless a process that shares them lives on. */
static bool still_mapped(const struct supervised *lease, const struct range *range)
{
	const enum mapped found = proc_mapped(range->process, range->start, range->end);

	return found == MAPPED || (found == MAPPINGS_UNSEEN && counters_exist(lease, range->process));
}

/*
 * Forget what has ended, and ioctls that have returned. KFD's counters of a process stay for a moment after its end,
 * and so does its entry: until both are gone. Counters are read after this, so what is forgotten is in them.
 */
static void sweep(const struct supervised *lease)
{
	size_t kept = 0;

	for (size_t i = 0; i < process_count; i++) {
		const uint64_t now = proc_start_time(processes[i].pid);

		if (now == processes[i].start_time || (!now && counters_exist(lease, processes[i].pid))) {
			processes[kept++] = processes[i];
			continue;
		}
		counters_close(&processes[i].counters);
		for (uint32_t device = 0; device < lease->limits.devices; device++)
			residue[device] += processes[i].kept[device];
	}
	process_count = kept;
	kept = 0;
	for (size_t i = 0; i < pending_count; i++)
		if (proc_in_ioctl(pending[i].thread))
			pending[kept++] = pending[i];
	pending_count = kept;
	kept = 0;
	for (size_t i = 0; i < range_count; i++)
		if (find(ranges[i].process) && still_mapped(lease, &ranges[i]))
			ranges[kept++] = ranges[i];
	range_count = kept;
}

static struct process *known(const struct supervised *lease, pid_t pid)
{
	struct process *process = find(pid);

	if (process)
		return process;
	if (process_count == MAX_PROCESSES)
		sweep(lease);
	if (process_count == MAX_PROCESSES)
		return NULL;
	process = &processes[process_count++];
	memset(process, 0, sizeof(*process));
	counters_init(&process->counters);
	process->pid = pid;
	process->start_time = proc_start_time(pid);
	return process;
}

static bool over(const struct supervised *lease, uint32_t device, uint64_t size)
{
	const uint64_t limit = lease->limits.device[device].limit_bytes;
	uint64_t now;

	if (size > limit)
		return true;
	now = used(lease, device);
	return now > limit || size > limit - now;
}

static bool fits(const struct supervised *lease, uint32_t device, uint64_t size)
{
	if (!over(lease, device, size))
		return true;
	sweep(lease);
	return !over(lease, device, size);
}

void account_returned(pid_t thread)
{
	size_t kept = 0;

	for (size_t i = 0; i < pending_count; i++)
		if (pending[i].thread != thread)
			pending[kept++] = pending[i];
	pending_count = kept;
}

bool account_take(struct supervised *lease, uint32_t index, pid_t pid, pid_t thread, uint64_t size,
		  enum charge charge)
{
	struct process *process;

	if (!known(lease, pid) || !fits(lease, index, size))
		return false;
	if (charge == CHARGE_UNCOUNTED) {
		residue[index] += size;
		return true;
	}
	if (pending_count == MAX_PENDING)
		sweep(lease);
	process = find(pid);		/* the sweep may have moved it, or found it dead */
	if (pending_count == MAX_PENDING || !process)
		return false;
	if (process->exporter)
		process->kept[index] += size;
	pending[pending_count++] = (struct pending){ pid, thread, index, size };
	return true;
}

/*
 * From now on nothing that the process frees is credited: the counter falls with the handle, the memory stays as long
 * as anybody holds the exported file, and neither its size nor its holders can be told from here.
 */
bool account_export(struct supervised *lease, pid_t pid)
{
	struct process *process = known(lease, pid);

	if (!process || process->exporter)
		return process != NULL;
	process->exporter = true;
	for (uint32_t device = 0; device < lease->limits.devices; device++)
		process->kept[device] = counters_read(lease, &process->counters, pid, device);
	for (size_t i = 0; i < pending_count; i++)
		if (pending[i].process == pid)
			process->kept[pending[i].device] += pending[i].size;
	return true;
}

/* Bytes of [start, end) that are charged to the device already. Ranges of one device and process are disjoint. */
static uint64_t charged(uint32_t device, pid_t process, uint64_t start, uint64_t end)
{
	uint64_t total = 0;

	for (size_t i = 0; i < range_count; i++) {
		const struct range *range = &ranges[i];
		const uint64_t from = range->start > start ? range->start : start;
		const uint64_t to = range->end < end ? range->end : end;

		if (range->device == device && range->process == process && from < to)
			total += to - from;
	}
	return total;
}

/* Join [start, end) with all ranges of the same device and process that it touches. */
static bool join(uint32_t device, pid_t process, uint64_t start, uint64_t end)
{
	struct range joined = { process, device, start, end };
	size_t kept = 0;

	for (size_t i = 0; i < range_count; i++) {
		const struct range *range = &ranges[i];

		if (range->device == device && range->process == process && range->start < end && start < range->end) {
			joined.start = range->start < joined.start ? range->start : joined.start;
			joined.end = range->end > joined.end ? range->end : joined.end;
		} else {
			ranges[kept++] = *range;
		}
	}
	range_count = kept;
	if (range_count == MAX_RANGES)
		return false;
	ranges[range_count++] = joined;
	return true;
}

bool account_range(struct supervised *lease, uint32_t index, pid_t pid, uint64_t start, uint64_t size)
{
	const uint64_t end = start + size;

	if (end < start || !known(lease, pid))
		return false;
	if (!fits(lease, index, size - charged(index, pid, start, end)))
		return false;
	if (range_count == MAX_RANGES)
		sweep(lease);
	return join(index, pid, start, end);
}

/* From now on the process may have further contexts, whose counters are beside its own. */
bool account_contexts(struct supervised *lease, pid_t pid)
{
	struct process *process = known(lease, pid);

	if (process)
		process->counters.contexts = true;
	return process != NULL;
}
