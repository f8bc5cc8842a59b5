// SPDX-License-Identifier: Apache-2.0
/*
 * Files that are needed at every allocation stay open, as far as this process's limit goes. Some are spared for all
 * else: a counter that cannot be opened would be taken for 0.
 */
#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define SPARE_FILES 64

static rlim_t kept;

/* A descriptor, or -1: there is no such file, or room for no more. */
int files_keep(const char *path, int flags)
{
	struct rlimit limit;
	int file;

	if (getrlimit(RLIMIT_NOFILE, &limit) || kept + SPARE_FILES >= limit.rlim_cur) {
		errno = EMFILE;
		return -1;
	}
	file = open(path, flags | O_CLOEXEC);
	kept += file >= 0;
	return file;
}

void files_forget(int *file)
{
	if (*file < 0)
		return;
	close(*file);
	*file = -1;
	kept--;
}
