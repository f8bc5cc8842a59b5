// SPDX-License-Identifier: Apache-2.0
/*
 * Loaded into an agent: while the file $FAILING_DISK exists, its disk fails. What that file says, "writes" or "syncs",
 * ends with EIO where it is of the ledger or lies beside it, and nothing of it is done.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether the disk under *fd* refuses *what*. */
static int fails(int fd, const char *what)
{
	const char *control = getenv("FAILING_DISK"), *state = getenv("FAILING_STATE");
	char link[64], path[PATH_MAX], said[16] = "";
	ssize_t length;
	int file;

	if (!control || !state)
		return 0;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, path, sizeof(path) - 1);
	if (length < 0)
		return 0;
	path[length] = '\0';
	if (strncmp(path, state, strlen(state)) != 0)
		return 0;
	file = open(control, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return 0;
	length = read(file, said, sizeof(said) - 1);
	close(file);
	if (length < 0 || strncmp(said, what, strlen(what)) != 0)
		return 0;
	errno = EIO;
	return 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite64(int fd, const void *from, size_t bytes, off64_t at)
{
	return fails(fd, "writes") ? -1 : NEXT(pwrite64)(fd, from, bytes, at);
}

ssize_t write(int fd, const void *from, size_t bytes)
{
	return fails(fd, "writes") ? -1 : NEXT(write)(fd, from, bytes);
}

int fdatasync(int fd)
{
	return fails(fd, "syncs") ? -1 : NEXT(fdatasync)(fd);
}

int fsync(int fd)
{
	return fails(fd, "syncs") ? -1 : NEXT(fsync)(fd);
}
