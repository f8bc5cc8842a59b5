// SPDX-License-Identifier: Apache-2.0
/*
 * A SPANK plugin: the tasks of a job that has a lease start with the hook in every program.
 *
 * A task-prolog can only say LD_PRELOAD, which `env -i` and a --task-prolog of the user's drop. Here the task gets
 * a mount namespace of its own, as root and before it becomes its user, with two things in it: the lease's limits
 * at the one place where the hook looks first, and an ld.so.preload that names the hook. The user cannot unmount
 * either. Static programs are not stopped by it; see docs/enforcement.md.
 *
 * The prolog left "DIRECTORY LIBRARY" in RUN/hook/JOB. No such file: the job has no hook, and nothing is done.
 * A file that cannot be obeyed fails the task, never the node (the plugin is `required` in plugstack.conf).
 *
 *	required /usr/libexec/nodeagent/slurm/gpulease.so [run=/run/nodeagent/slurm]
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slurm/spank.h>

#define LIMITS_PLACE "/etc/gpulease"	/* compiled into the hook, too */
#define PRELOAD "/etc/ld.so.preload"
#define LONGEST 256
#define LARGEST_PRELOAD 4096

SPANK_PLUGIN(gpulease, 1);

/* Say why in slurmd's log, and to the user's terminal; the task fails. */
static int failed(const char *what, const char *why)
{
	slurm_error("gpulease: %s: %s", what, why);
	return -1;
}

static const char *run_directory(int count, char **arguments)
{
	for (int i = 0; i < count; i++)
		if (!strncmp(arguments[i], "run=", 4))
			return arguments[i] + 4;
	return "/run/nodeagent/slurm";
}

static int is_roots(const struct stat *status)
{
	return S_ISREG(status->st_mode) && status->st_uid == 0 && !(status->st_mode & (S_IWGRP | S_IWOTH));
}

/* What `path` holds, NUL-terminated: its length, or -1 with errno. Only a file of root's is read. */
static ssize_t read_roots(const char *path, char *text, size_t size)
{
	struct stat status;
	ssize_t got = -1;
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		return -1;
	if (fstat(fd, &status) || !is_roots(&status))
		errno = EPERM;
	else if ((size_t)status.st_size >= size)
		errno = EFBIG;
	else
		got = read(fd, text, size - 1);
	close(fd);
	if (got >= 0)
		text[got] = '\0';
	return got;
}

/* Programs that start after this one read ours after the node's own. */
static int write_preload(const char *path, const char *library)
{
	char text[LARGEST_PRELOAD];
	const ssize_t got = read_roots(PRELOAD, text, sizeof(text));
	FILE *file;

	if (got < 0 && errno != ENOENT)
		return -1;
	file = fopen(path, "wxe");
	if (!file)
		return -1;
	fchmod(fileno(file), 0644);	/* whatever umask the step has */
	fprintf(file, "%s\n%s\n", got > 0 ? text : "", library);
	return fclose(file);
}

/*
 * Lay the lease's limits and the preload file over the node's. The file lies on a small file system of its own,
 * which the limits then cover: so nothing is left on the node, and it goes with the task.
 */
static int cover(const char *directory, const char *library)
{
	const char file[] = LIMITS_PLACE "/preload";

	if (mount("gpulease", LIMITS_PLACE, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=64k,mode=755"))
		return failed(LIMITS_PLACE, strerror(errno));
	if (write_preload(file, library))
		return failed(file, strerror(errno));
	if (mount(file, PRELOAD, NULL, MS_BIND, NULL))
		return failed(PRELOAD " (an empty file must be there)", strerror(errno));
	if (mount(directory, LIMITS_PLACE, NULL, MS_BIND, NULL))
		return failed(directory, strerror(errno));
	return 0;
}

/* A namespace whose mounts do not reach the node's; what the node mounts later is still seen in it. */
static int leave_mounts(void)
{
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL))
		return failed("no mounts of its own for the task", strerror(errno));
	return 0;
}

int slurm_spank_task_init_privileged(spank_t spank, int count, char **arguments)
{
	char path[LONGEST], record[2 * LONGEST], directory[LONGEST], library[LONGEST];
	uint32_t job;

	if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS)
		return failed("job id", "Slurm does not tell it");
	snprintf(path, sizeof(path), "%s/hook/%u", run_directory(count, arguments), job);
	if (read_roots(path, record, sizeof(record)) < 0)
		return errno == ENOENT ? 0 : failed(path, strerror(errno));
	if (sscanf(record, "%255s %255s", directory, library) != 2)
		return failed(path, "holds no directory and library");
	return leave_mounts() || cover(directory, library) ? -1 : 0;
}
