/* SPDX-License-Identifier: Apache-2.0 */
/* What a power loss would leave of a directory: what was synced, under the names that were synced. */
#ifndef TRACER_H
#define TRACER_H

#include <sys/types.h>

/* Keep what survives of the directory *state* in the directory *surviving*. Without: nothing is kept. */
void surviving_of(const char *state, const char *surviving);

/* The thread is about to sync its descriptor *fd*. */
void surviving_begin(pid_t tid, int fd);

/* Whether the end of a sync of the thread is of interest. */
int surviving_awaits(pid_t tid);

/* The sync that the thread began has ended, well or with an error. */
void surviving_end(pid_t tid, int failed);

#endif
