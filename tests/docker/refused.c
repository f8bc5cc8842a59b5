// SPDX-License-Identifier: Apache-2.0
/*
 * Which system calls get past a container's filter: each is made by a child of its own with arguments that are wrong
 * for all, by the 64-bit entry and by int 0x80, and a few with arguments that filters look at. Prints "ENTRY NUMBER
 * RESULT" for each: an errno, 0, or minus the signal that ended the child.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 512
#define SIGSUSPEND_32 72		/* with these arguments for ever */

static int by_64(long number, long first)
{
	return syscall(number, first, -1L, -1L, -1L, -1L, -1L) < 0 ? errno : 0;
}

static int by_32(long number, long first)
{
	int returned;

	__asm__ volatile("int $0x80" : "=a"(returned) : "a"((int)number), "b"((int)first), "c"(-1), "d"(-1), "S"(-1),
			 "D"(-1) : "memory");
	return returned < 0 && returned > -4096 ? -returned : 0;
}

static void try(const char *entry, int (*call)(long, long), long number, long first)
{
	const pid_t parent = getpid(), child = fork();
	int status;

	if (!child) {
		alarm(1);
		status = call(number, first);
		if (getppid() != parent)	/* of a fork that came about */
			_exit(0);
		_exit(status & 0xff);
	}
	waitpid(child, &status, 0);
	printf("%s %ld %d\n", entry, number, WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
	fflush(stdout);
}

int main(void)
{
	static const struct { const char *name; long number, first; } special[] = {
		{ "socket-vsock", SYS_socket, 40 },
		{ "socket-alg", SYS_socket, 38 },
		{ "socket-inet", SYS_socket, 2 },
		{ "personality-no-randomize", SYS_personality, 0x0040000 },
		{ "personality-linux", SYS_personality, 0 },
		{ "personality-ask", SYS_personality, 0xffffffff },
		{ "clone-user", SYS_clone, CLONE_NEWUSER | 17 },
		{ "clone-net", SYS_clone, CLONE_NEWNET | 17 },
	};

	for (long number = 0; number < MOST; number++)
		try("64", by_64, number, -1);
	for (long number = 0; number < MOST; number++)
		if (number != SIGSUSPEND_32)
			try("32", by_32, number, -1);
	for (size_t i = 0; i < sizeof(special) / sizeof(*special); i++)
		try(special[i].name, by_64, special[i].number, special[i].first);
	return 0;
}
