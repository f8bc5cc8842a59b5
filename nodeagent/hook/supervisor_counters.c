// SPDX-License-Identifier: Apache-2.0
/*
 * KFD's own counters of one process: kfd/proc/<pid>/vram_<gpu id>, and the same of further contexts of it in
 * directories below.
 */
#include "supervisor.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void counters_init(struct counters *counters)
{
	counters->contexts = false;
	for (int device = 0; device < MAX_DEVICES; device++)
		counters->file[device] = -1;
}

void counters_close(struct counters *counters)
{
	for (int device = 0; device < MAX_DEVICES; device++)
		files_forget(&counters->file[device]);
}

bool counters_exist(const struct supervised *lease, pid_t pid)
{
	char directory[256];

	snprintf(directory, sizeof(directory), "%s/%d", lease->kfd_processes, pid);
	return !access(directory, F_OK);
}

static uint64_t in_contexts(const struct supervised *lease, pid_t pid, uint32_t gpu_id)
{
	char path[512];
	uint64_t total = 0;
	DIR *open;

	snprintf(path, sizeof(path), "%s/%d", lease->kfd_processes, pid);
	open = opendir(path);
	for (const struct dirent *entry; open && (entry = readdir(open));) {
		if (strncmp(entry->d_name, "context_", 8) || strlen(entry->d_name) > 64)
			continue;
		snprintf(path, sizeof(path), "%s/%d/%s/vram_%u", lease->kfd_processes, pid, entry->d_name, gpu_id);
		total += proc_number(path);
	}
	if (open)
		closedir(open);
	return total;
}

static uint64_t in_first_context(const struct supervised *lease, int *file, pid_t pid, uint32_t gpu_id)
{
	uint64_t number = 0;
	char path[512];

	/* An open file of a KFD process that is gone cannot be read, and execve makes another of the same number. */
	if (*file >= 0 && proc_read_number(*file, &number))
		return number;
	files_forget(file);
	snprintf(path, sizeof(path), "%s/%d/vram_%u", lease->kfd_processes, pid, gpu_id);
	*file = files_keep(path, O_RDONLY);
	if (*file < 0)
		return proc_number(path);
	return proc_read_number(*file, &number) ? number : 0;
}

uint64_t counters_read(const struct supervised *lease, struct counters *counters, pid_t pid, uint32_t device)
{
	const uint32_t gpu_id = lease->limits.device[device].gpu_id;

	return in_first_context(lease, &counters->file[device], pid, gpu_id) +
	       (counters->contexts ? in_contexts(lease, pid, gpu_id) : 0);
}
