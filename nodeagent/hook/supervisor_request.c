// SPDX-License-Identifier: Apache-2.0
/*
 * The request: NUL-ended words `key=value` in a file that only the agent can write: nodeagent/adapters/supervisor.py.
 */
#include "supervisor.h"
#include "priority.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_BYTES (1u << 20)

bool read_all(int descriptor, void *to, size_t size)
{
	for (size_t done = 0; done < size;) {
		const ssize_t got = pread(descriptor, (char *)to + done, size - done, (off_t)done);

		if (got <= 0)
			return false;
		done += (size_t)got;
	}
	return true;
}

static bool take_groups(struct request *request, const char *value)
{
	char *next = (char *)value;

	request->groups = calloc(MAX_GROUPS, sizeof(*request->groups));
	while (request->groups && *next && request->group_count < MAX_GROUPS) {
		request->groups[request->group_count++] = (gid_t)strtoul(next, &next, 10);
		next += *next == ',';
	}
	return request->groups && !*next;
}

static bool take_limit(struct request *request, const char *value)
{
	unsigned long which, soft, hard;

	if (sscanf(value, "%lu:%lu:%lu", &which, &soft, &hard) != 3 || which >= RLIM_NLIMITS)
		return false;
	request->limit[which].set = true;
	request->limit[which].value = (struct rlimit){ soft, hard };
	return true;
}

/* A hexadecimal mask, lowest byte first. */
static bool take_cpus(struct request *request, const char *value)
{
	const size_t bytes = strlen(value) / 2;
	unsigned char *mask = calloc(1, bytes + sizeof(long));

	for (size_t i = 0; mask && i < bytes; i++) {
		unsigned int byte;

		if (sscanf(value + 2 * i, "%2x", &byte) != 1)
			return false;
		mask[i] = (unsigned char)byte;
	}
	request->cpus = mask;
	request->cpu_bytes = (bytes + sizeof(long) - 1) / sizeof(long) * sizeof(long);
	return mask && bytes;
}

static bool take_word(struct request *request, const char *word)
{
	const struct { const char *name; int *number; } numbers[] = {
		{ "limits", &request->limits }, { "cgroup", &request->cgroup }, { "home", &request->home },
		{ "answer", &request->answer }, { "peer", &request->peer }, { "peer_pid", &request->peer_pid },
		{ "command", &request->offered.command }, { "stdin", &request->offered.standard[0] },
		{ "stdout", &request->offered.standard[1] }, { "stderr", &request->offered.standard[2] },
		{ "cwd", &request->offered.cwd }, { "report", &request->offered.report },
		{ "nice", &request->nice },
	};
	const struct { const char *name; const char **text; } texts[] = {
		{ "kfd", &request->kfd }, { "kfd_processes", &request->kfd_processes },
		{ "oom", &request->oom_adjust }, { "socket", &request->socket }, { "within", &request->within },
	};
	const char *value = strchr(word, '=');
	const size_t length = value ? (size_t)(value++ - word) : 0;

#define IS(text) (length == strlen(text) && !strncmp(word, text, length))
	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
		if (IS(numbers[i].name))
			return sscanf(value, "%d", numbers[i].number) == 1;
	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
		if (IS(texts[i].name))
			return (*texts[i].text = value) != NULL;
	if (IS("lease"))
		return sscanf(value, "%lu", &request->lease) == 1;
	if (IS("uid"))
		return sscanf(value, "%u", &request->uid) == 1;
	if (IS("gid"))
		return sscanf(value, "%u", &request->gid) == 1;
	if (IS("umask"))
		return sscanf(value, "%o", &request->mask) == 1;
	if (IS("ignored"))
		return sscanf(value, "%lx", &request->ignored) == 1;
	if (IS("no_new_privileges"))
		return (request->no_new_privileges = *value == '1', true);
	if (IS("private_ipc"))
		return (request->private_ipc = *value == '1', true);
	if (IS("render") && request->renders < MAX_STAND_INS) {
		struct stand_in *node = &request->render[request->renders++];

		node->path = strchr(value, ':');
		return sscanf(value, "%u", &node->minor) == 1 && node->path && *++node->path;
	}
	if (IS("groups"))
		return take_groups(request, value);
	if (IS("rlimit"))
		return take_limit(request, value);
	if (IS("cpus"))
		return take_cpus(request, value);
	return false;
#undef IS
}

/* Whether all is there that a command's start needs, or else the containers' socket. */
static bool complete(const struct request *request)
{
	const bool supervised = request->limits >= 0;

	if (supervised && (!request->kfd || !request->kfd_processes))
		return false;
	if (request->socket)
		return supervised && request->within;
	return request->cgroup >= 0 && request->peer >= 0 && request->peer_pid > 0 && request->offered.command >= 0 &&
	       request->offered.cwd >= 0 && request->offered.report >= 0 && request->uid != (uid_t)-1 &&
	       request->gid != (gid_t)-1;
}

const char *request_read(int descriptor, struct request *request)
{
	struct stat status;
	char *text, *at;
	const char *limit;

	*request = (struct request){ .home = -1, .limits = -1, .cgroup = -1, .answer = -1, .peer = -1,
				     .uid = (uid_t)-1, .gid = (gid_t)-1 };
	request->offered.command = request->offered.cwd = request->offered.report = -1;
	if (fstat(descriptor, &status) || status.st_size <= 0 || (size_t)status.st_size > MOST_BYTES)
		return "the request is empty or too large";
	text = malloc((size_t)status.st_size);
	if (!text || !read_all(descriptor, text, (size_t)status.st_size))
		return "the request cannot be read";
	limit = text + status.st_size;
	if (limit[-1])
		return "the request is cut off";
	for (at = text; at < limit; at += strlen(at) + 1)
		if (!take_word(request, at))
			return "the request holds a word that is not known: agent and supervisor differ in version";
	return complete(request) ? NULL : "the request lacks a word";
}

const char *limits_read(int descriptor, uint64_t lease, struct limits *limits)
{
	struct stat status;

	memset(limits, 0, sizeof(*limits));
	if (fstat(descriptor, &status) || (size_t)status.st_size > sizeof(*limits) ||
	    (size_t)status.st_size < LIMITS_SIZE(0) || !read_all(descriptor, limits, (size_t)status.st_size))
		return "the limits cannot be read";
	if (memcmp(limits->magic, LIMITS_MAGIC, MAGIC_SIZE) || limits->version != FORMAT_VERSION ||
	    limits->devices > MAX_DEVICES || limits->size != LIMITS_SIZE(limits->devices) ||
	    limits->size != (size_t)status.st_size)
		return "the limits are of another version";
	if (limits->lease != lease)
		return "the limits are another lease's";
	for (uint32_t i = 0; i < limits->devices; i++)
		if (!limits->device[i].unit || limits->device[i].unit > 2 ||
		    limits->device[i].queue_level > PRIORITY_MAX + 1)
			return "the limits are damaged";
	return NULL;
}
