/*
 * The life of a lease: two clients who want the same slice, the agent's threads, its ledger, and the kernel.
 *
 * Names are the code's. What stands in one atomic or d_step happens whole or not at all: one transaction, or
 * one change on the kernel's side, with looks before it that the lease's lock or SQLite's keeps true. Between
 * any two of them the agent may be killed, or the power may fail. Each #ifdef is a mistake that spin must find;
 * docs/model.md says which, what is left out, and how this is run.
 */
#ifndef SERVERS /* or as `check` sets them; REQUESTS: request ids of the first client */
#define SERVERS 2
#define KILLS 1
#endif
#ifndef POWER_LOSSES
#define POWER_LOSSES 0
#endif
#ifndef BACKUPS
#define BACKUPS 0
#endif
#ifndef REQUESTS
#define REQUESTS 1
#endif
#define IDS 3 /* leases in one run: `any` and `some` count on three */

mtype:LeaseState = { QUEUED, CANCELLED, PREPARING, ACTIVE, LOST, RELEASING, RELEASED, FAILED };
mtype:SliceState = { HELD, CLEANING, QUARANTINED, FREE };
mtype:Populated = { NOBODY, LIVING, KILLED }; /* KILLED: has its SIGKILL and is not gone, in D state maybe never */
mtype:Verb = { GRANT, ATTACH, RELEASE };

typedef Lease {
	mtype:LeaseState state; /* 0: there is no such row */
	mtype:SliceState slice; /* 0: none yet */
	bool evidence;          /* the journal says where its cgroup is; only PROOF_BY_EVIDENCE relies on it */
	bool armed;             /* its anchor was seen alive */
	byte holder, request, boot
};
typedef Ledger { Lease lease[IDS + 1]; byte high_water };
Ledger ledger, disk, backup; /* disk: what a power loss leaves of the ledger */
byte mark;                   /* the file `ids` beside the database, written before an id is used */
byte highest;                /* the highest id that was ever given: what nobody in here can know */

typedef Cgroup { bool exists, limited, frozen, charged; mtype:Populated populated }; /* charged: dmem.current > 0 */
Cgroup cgroup[IDS + 1];  /* by the id in its name */
bool launching[IDS + 1]; /* a supervisor, which outlives the agent, is about to start a command in it */

bool up, strangers, serving, locked[IDS + 1]; /* the agent's memory; serving: its first thread is not idle */
byte threads;                                 /* of the agent, or of a killed one: those that are not gone yet */
byte boot = 1, kills, losses, backups, restores;
chan ask[2] = [0] of { mtype:Verb, byte, byte };
byte request[3], told[3], last[3]; /* what the two clients know: told and last are leases they were given */
hidden byte i;

#define of(id) ledger.lease[id]
#define is(id, which) (of(id).state == which)
#define holds(id) (of(id).slice != 0 && of(id).slice != FREE)
#define live(id) (is(id, QUEUED) || is(id, PREPARING) || is(id, ACTIVE) || is(id, LOST) || is(id, RELEASING))
#define known(id) (live(id) || holds(id))
#define populated(id) (cgroup[id].populated != NOBODY)
#define used(id) (populated(id) || cgroup[id].charged)
#define durable(id) (disk.lease[id].state == of(id).state)
#define stranger(id) (populated(id) && !known(id))
#define any(what) (what(1) || what(2) || what(3))
#define some(id, what) if :: what(1) -> id = 1 :: what(2) -> id = 2 :: what(3) -> id = 3 fi

inline copy(to, from) {
	for (i : 1 .. IDS) {
		to.lease[i].state = from.lease[i].state; to.lease[i].slice = from.lease[i].slice;
		to.lease[i].evidence = from.lease[i].evidence; to.lease[i].armed = from.lease[i].armed;
		to.lease[i].holder = from.lease[i].holder; to.lease[i].request = from.lease[i].request;
		to.lease[i].boot = from.lease[i].boot
	}
	to.high_water = from.high_water
}

inline commit() { copy(disk, ledger) } /* synchronous=FULL */

/* No double grant: on the slice of `id` is nobody else, nor memory, but what a stranger of a restore has left. */
inline alone(id) {
	for (i : 1 .. IDS) { assert(i == id || !used(i) || restores > 0 && !known(i) && !populated(i)) }
	i = 0
}

/* ---- the use cases ---- */

#define same(id, who, which) (of(id).holder == who && of(id).request == which && of(id).boot == boot)

/* Booker.book: `id` is what the same request got before; or else a fresh lease; or 0, a refusal. */
inline book(who, which, id, fresh) {
	d_step {
#ifndef REQUEST_NOT_REMEMBERED
		for (i : 1 .. IDS) {
			id = (same(i, who, which) -> i : id)
		}
#endif
		if
		:: id == 0 && !strangers && mark < IDS && ledger.high_water < IDS ->
			fresh = true;
#ifdef MARK_IGNORED
			id = ledger.high_water + 1;
#else
			id = (mark > ledger.high_water -> mark : ledger.high_water) + 1;
#endif
			mark = id;
			assert(id > highest); /* an id is never used again */
			highest = id;
			for (i : 1 .. IDS) { assert(!same(i, who, which)) } /* one lease for one request */
			of(id).holder = who; of(id).request = which; of(id).boot = boot;
			ledger.high_water = id;
			if
			:: any(holds) -> of(id).state = QUEUED
			:: else -> of(id).state = PREPARING; of(id).slice = HELD
			fi;
#ifndef SWAPPED_SYNC_AND_ANSWER
			commit()
#endif
		:: else
		fi
	}
}

/* Booker.place_queued. */
inline place_queued(id) {
	d_step {
		if
		:: is(id, QUEUED) && !any(holds) -> of(id).state = PREPARING; of(id).slice = HELD; commit()
		:: else
		fi
	}
}

/* Releaser._begin. */
inline begin(id) {
	d_step {
		if
		:: is(id, QUEUED) -> of(id).state = CANCELLED
		:: is(id, PREPARING) || is(id, ACTIVE) -> /* by way of LOST, in this one transaction, with its device */
			of(id).state = RELEASING;
			of(id).slice = CLEANING
		:: else
		fi;
		commit()
	}
}

/* Releaser.end. */
inline finish(id) { atomic { !locked[id] -> begin(id) } }

/* Releaser.reap: an anchor that has been armed or renewed since it was read counts as it is now. */
#define deadline(id) (!of(id).armed) /* nothing entered it, or it waited too long: that may be so at any time */
#define dead(id) (live(id) && !is(id, RELEASING) && \
	(of(id).boot != boot || deadline(id) || cgroup[id].populated == NOBODY))
#ifndef STALE_ANCHOR
#define STILL_DEAD(id) dead(id)
#else
#define STILL_DEAD(id) true
#endif
#define healthy(id) (is(id, ACTIVE) && of(id).boot == boot && of(id).armed && cgroup[id].populated == LIVING)
inline reap(id) {
	atomic {
		!locked[id];
		if
		:: STILL_DEAD(id) -> assert(!healthy(id)); begin(id)
		:: else
		fi
	}
}

/* Granter.prepare: apply and verify CGROUP and DMEM, then ACTIVE; or the node says no, and it is ended. */
inline prepare(id) {
	atomic {
		!locked[id];
		if
		:: is(id, PREPARING) -> locked[id] = true; cgroup[id].exists = true
		:: is(id, PREPARING) -> begin(id); goto done
		:: !is(id, PREPARING) -> goto done
		fi
	};
	cgroup[id].limited = true;
	atomic {
		alone(id);
		of(id).state = ACTIVE;
#ifdef PROOF_BY_EVIDENCE
		of(id).evidence = true;
#endif
#ifndef SWAPPED_SYNC_AND_ANSWER
		commit();
#endif
		locked[id] = false
	}
}

/* Granted is what is in force and on the disk. A client that meanwhile asked for another does not hear of this. */
inline answer(who, which, id) {
	if
	:: id != 0 && !is(id, QUEUED) && !is(id, PREPARING) ->
		assert(durable(id));
		told[who] = (request[who] == which -> id : told[who])
	:: else
	fi
}

inline close(id) { cgroup[id].exists = false; cgroup[id].limited = false; cgroup[id].frozen = false }

/* The kernel lets a process in where there still is such a cgroup. Limits are set before. */
inline enter(id) {
	d_step {
		if
		:: cgroup[id].exists ->
			assert(cgroup[id].limited);
			alone(id);
			cgroup[id].populated = LIVING
		:: else
		fi
	}
}

/* Attacher.attach, or Launcher.launch by way of a supervisor, which goes on if the agent is killed. */
inline attach(who, id) {
	if
	:: true -> enter(id)
	:: !of(id).armed -> launching[id] = true; !launching[id]
	fi;
	atomic { of(id).armed = true; commit(); locked[id] = false }
}

/* cgroup.kill, and a look who is left. Who is launched into it later is frozen, and allocates nothing. */
#ifndef NOT_FROZEN
#define FREEZE(id) cgroup[id].frozen = true
#else
#define FREEZE(id) skip
#endif
inline undo_occupants(id) {
	atomic {
		if
		:: cgroup[id].populated == LIVING -> cgroup[id].populated = KILLED; goto pending
		:: cgroup[id].populated == KILLED -> goto pending
		:: cgroup[id].populated == NOBODY -> FREEZE(id)
		fi
	}
}

inline undo_dmem(id) {
	if
	:: !cgroup[id].charged
#ifndef PROOF_BY_EVIDENCE
	:: cgroup[id].charged -> goto pending
#else
	:: cgroup[id].charged && of(id).evidence -> goto pending
	:: cgroup[id].charged && !of(id).evidence
#endif
	fi
}

/* rmdir: it fails while somebody is in there, who came in later and is killed, too. */
inline undo_cgroup(id) {
	atomic {
		if
		:: cgroup[id].populated == LIVING -> cgroup[id].populated = KILLED; goto pending
		:: cgroup[id].populated == KILLED -> goto pending
		:: cgroup[id].populated == NOBODY -> close(id)
		fi
	}
}

/* Releaser._settle. */
inline settle(id, slice_state, lease_state) {
	d_step {
		assert(slice_state != FREE || !used(id)); /* a slice is free only with proof */
		of(id).slice = slice_state;
		of(id).state = (is(id, RELEASING) -> lease_state : of(id).state);
		commit()
	}
}

/* ---- the agent's threads ---- */

#define dying (!up && threads == _pid + 1) /* a killed agent's threads end wherever they are, in one order */
#define call(verb) ask[_pid]?verb, who, what -> serving = (_pid == 0 -> SERVERS - 1 : serving)
#define idle who = 0; what = 0; id = 0; serving = (_pid == 0 -> false : serving)

active [SERVERS] proctype server() {
	byte who, what, id;
	bool fresh;
end_down:
	{
		up;
end_idle:	do
		:: atomic {
				call(GRANT);
#ifdef SWAPPED_APPLY_AND_JOURNAL
				cgroup[(mark < IDS -> mark + 1 : 0)].exists = true;
			};
			atomic {
#endif
				book(who, what, id, fresh);
				if
				:: fresh && is(id, PREPARING) -> fresh = false
				:: else -> fresh = false; answer(who, what, id); idle; goto end_idle
				fi
			};
			prepare(id);
done:			atomic { answer(who, what, id); idle }
		:: atomic {
				call(ATTACH);
				!locked[what];
				if
				:: is(what, ACTIVE) && of(what).holder == who
				:: else -> idle; goto end_idle
				fi;
				locked[what] = true
			};
			attach(who, what);
			idle
		:: atomic {
				call(RELEASE);
				if
				:: of(what).holder == who -> finish(what); assert(durable(what))
				:: else
				fi;
				idle
			}
		od
	} unless { d_step { dying -> threads--; who = 0; what = 0; id = 0; fresh = false }; goto end_down }
}

#ifndef STRANGERS_IGNORED
#define here(id) (of(id).boot == boot && !strangers)
#else
#define here(id) (of(id).boot == boot)
#endif
#define waiting(id) (is(id, QUEUED) && !any(holds) && here(id))
#define booked(id) (is(id, PREPARING) && here(id) && !locked[id])

#define in_vain(id) (cgroup[id].populated == KILLED || cgroup[id].populated == NOBODY && cgroup[id].charged)
#define unclean(id) ((is(id, RELEASING) || of(id).slice == QUARANTINED) && !in_vain(id))
#define overdue(id) (is(id, RELEASING) && in_vain(id))

/* Reconciler.run_once, which acts on what it read before; Journal.undo by Releaser._clean and _retry, in turns. */
active proctype reconciler() {
	byte id;
end_down:
	{
		up;
end_idle:	do
		:: d_step { strangers != any(stranger) -> strangers = any(stranger) }
		:: atomic { some(id, waiting); place_queued(id) }; prepare(id); goto done
		:: atomic { some(id, booked) }; prepare(id); goto done
		:: atomic { some(id, dead) }; atomic { reap(id); id = 0 }
#ifndef NEVER_GIVEN_UP
		:: atomic { some(id, overdue); settle(id, QUARANTINED, FAILED); id = 0 }
#endif
		:: atomic { some(id, unclean) };
			/* Journal.undo, newest first, then _settle */
#ifdef SWAPPED_FREE_AND_PROOF
			settle(id, FREE, RELEASED);
#endif
#ifdef SWAPPED_DMEM_AND_OCCUPANTS
			undo_dmem(id); undo_occupants(id);
#else
			undo_occupants(id); undo_dmem(id);
#endif
			undo_cgroup(id);
			settle(id, FREE, RELEASED);
pending:
done:			id = 0
		od
	} unless { d_step { dying -> threads--; id = 0 }; goto end_down }
}

/* ---- the outside: nothing of it comes between the ends of a killed agent's threads ---- */

#define whole (up || threads == 0)

/* Without an answer it asks again. It releases late, too, and what is over long since. */
proctype client(byte me, requests) provided (whole) {
	request[me] = 1;
end_idle:
	do
	:: told[me] == 0 -> ask[serving]!GRANT, me, request[me]
	:: told[me] != 0 -> ask[serving]!ATTACH, me, told[me]
	:: told[me] != 0 -> ask[serving]!RELEASE, me, told[me]
	:: last[me] != 0 -> ask[serving]!RELEASE, me, last[me]
	:: d_step { told[me] != 0 && request[me] < requests -> last[me] = told[me]; told[me] = 0; request[me]++ }
	od
}

#define allocating(id) (cgroup[id].populated == LIVING && !cgroup[id].charged && !cgroup[id].frozen)
#define leaving(id) (!populated(id) && cgroup[id].charged)

/* Processes allocate and end, and their memory comes back after them; or from some moment on neither ever does. */
active proctype kernel() provided (whole) {
	byte id;
end_idle:
	do
	:: atomic { some(id, populated); cgroup[id].populated = NOBODY; id = 0 }
	:: atomic { some(id, allocating); cgroup[id].charged = true; id = 0 }
	:: atomic { some(id, leaving); cgroup[id].charged = false; id = 0 }
#ifdef STUCK
	:: break
#endif
	od
}

#define about(id) launching[id]

active proctype supervisor() provided (whole) {
	byte id;
end_idle:
	do
	:: atomic { some(id, about); enter(id); launching[id] = false; id = 0 }
	od
}

/* What befalls the agent, its files and its node. */
active proctype fate() provided (whole) {
	run client(1, REQUESTS);
	run client(2, 1);
end_idle:
	do
	:: d_step { !up -> /* it looks at the node before it serves */
		for (i : 1 .. IDS) {
			locked[i] = false;
			assert(restores > 0 || !cgroup[i].exists || known(i)) /* nothing is left behind */
		}
		strangers = any(stranger);
		serving = false;
		threads = SERVERS + 1;
		up = true }
	:: d_step { up && kills < KILLS -> kills++; up = false }
	:: d_step { losses < POWER_LOSSES ->
		losses++;
		boot++;
		up = false;
		copy(ledger, disk);
		for (i : 1 .. IDS) {
			launching[i] = false;
			close(i);
			cgroup[i].charged = false;
			cgroup[i].populated = NOBODY
		}
		i = 0 }
	:: d_step { up && backups < BACKUPS -> backups++; copy(backup, ledger) }
	:: d_step { !up && restores < backups && !any(about) -> /* by hand: no launch takes as long */
		restores++; copy(ledger, backup); copy(disk, backup); i = 0 }
	od
}

/* Every release ends in free or quarantined. */
#define releasing(id) is(id, RELEASING)
ltl settles { [] <> !any(releasing) }
