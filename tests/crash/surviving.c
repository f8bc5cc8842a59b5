// SPDX-License-Identifier: Apache-2.0
/*
 * What a power loss would leave of one directory, in the strictest reading: of each file the content at its last
 * fsync or fdatasync, under the names at the directory's last fsync. Kept in another directory as one file an inode,
 * and "names" with a line "INODE NAME" for each entry. Inodes are not reused on tmpfs, so they stand for files.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tracer.h"

#define MOST_THREADS 64

static const char *state, *surviving;

static struct sync {
	pid_t tid; /* 0: free */
	char path[64]; /* of the descriptor, in /proc */
} syncs[MOST_THREADS];

static void fail(const char *path)
{
	fprintf(stderr, "tracer: %s: %s\n", path, strerror(errno));
	exit(1);
}

void surviving_of(const char *of, const char *in)
{
	state = of;
	surviving = in;
}

static struct sync *sync_of(pid_t tid)
{
	for (int index = 0; index < MOST_THREADS; index++)
		if (syncs[index].tid == tid)
			return &syncs[index];
	return NULL;
}

void surviving_begin(pid_t tid, int fd)
{
	struct sync *sync = sync_of(0);

	if (!state || !sync)
		return;
	sync->tid = tid;
	snprintf(sync->path, sizeof(sync->path), "/proc/%d/fd/%d", tid, fd);
}

int surviving_awaits(pid_t tid)
{
	return sync_of(tid) != NULL;
}

/* The copy replaces the older one at once: the tracer may be ended in the middle. */
static void keep_file(int from, ino_t inode)
{
	char to[PATH_MAX], fresh[PATH_MAX];
	int copy;

	snprintf(to, sizeof(to), "%s/%lu", surviving, (unsigned long)inode);
	snprintf(fresh, sizeof(fresh), "%s/fresh", surviving);
	copy = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (copy < 0)
		fail(fresh);
	while (sendfile(copy, from, NULL, 1 << 24) > 0)
		;
	close(copy);
	if (rename(fresh, to) < 0)
		fail(to);
}

static void keep_names(void)
{
	char to[PATH_MAX], fresh[PATH_MAX];
	DIR *directory = opendir(state);
	struct dirent *entry;
	FILE *names;

	snprintf(to, sizeof(to), "%s/names", surviving);
	snprintf(fresh, sizeof(fresh), "%s/fresh", surviving);
	names = fopen(fresh, "we");
	if (!directory || !names)
		fail(directory ? fresh : state);
	while ((entry = readdir(directory)))
		if (entry->d_type == DT_REG)
			fprintf(names, "%lu %s\n", (unsigned long)entry->d_ino, entry->d_name);
	closedir(directory);
	fclose(names);
	if (rename(fresh, to) < 0)
		fail(to);
}

void surviving_end(pid_t tid, int failed)
{
	struct sync *sync = tid ? sync_of(tid) : NULL;
	char path[PATH_MAX];
	struct stat status;
	ssize_t length;
	int from;

	if (!sync)
		return;
	sync->tid = 0;
	length = readlink(sync->path, path, sizeof(path) - 1);
	if (failed || length < 0)
		return;
	path[length] = '\0';
	from = open(sync->path, O_RDONLY | O_CLOEXEC);
	if (from < 0 || fstat(from, &status) < 0)
		fail(path);
	if (strcmp(path, state) == 0)
		keep_names();
	else if (S_ISREG(status.st_mode) && strncmp(path, state, strlen(state)) == 0 && path[strlen(state)] == '/')
		keep_file(from, status.st_ino);
	close(from);
}
