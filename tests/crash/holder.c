// SPDX-License-Identifier: Apache-2.0
/*
 * A process that holds a lease: it sleeps. Told by a byte on its stdin, it first makes a System V segment, and then the
 * file /dev/shm/crash-PID, and leaves both for whoever clears up after it.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <unistd.h>

int main(void)
{
	char name[32], byte;

	if (read(0, &byte, 1) == 1) {
		snprintf(name, sizeof(name), "/dev/shm/crash-%d", getpid());
		if (shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600) < 0 || open(name, O_RDWR | O_CREAT | O_EXCL, 0600) < 0)
			perror(name);
	}
	for (;;)
		pause();
}
