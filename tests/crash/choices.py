"""What is done next, at random: acts of the agent that make sense now, and mishaps between its lives."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

from .ledger_copy import OPEN
from .word import Promise, Word
from .world import World

SECOND_NS = 10**9
UIDS = (0, 61001, 61002, 61003)
FEW_LIVE, MOST_LIVE = 3, 7
GIB = 1 << 30
TTL_SECONDS = (30, 120, 900)
SOMETHING_MEANWHILE = 0.35  # of the starts

Asked = dict[str, Any]


class Choices:
    """Over one world and the word that was given in it."""

    def __init__(self, chance: random.Random, world: World, word: Word) -> None:
        self._chance = chance
        self._world = world
        self._word = word
        self._names = itertools.count(1)

    # -- while no agent runs ----------------------------------------------------------------------------

    def meanwhile(self, *, sidecars: bool) -> str | None:
        """A holder may end or time pass, or an administrator does something; what the next start then is.

        *sidecars*: whether these are sure to say what the ledger says, so that one may lose that.
        """
        if self._chance.random() > SOMETHING_MEANWHILE:
            return None
        mishaps: list[tuple[float, Callable[[], str | None]]] = [
            (6.0, self._end_a_holder),
            (3.0, self._let_time_pass),
            (1.5 if sidecars else 0.0, self._lose_the_ledger),
            (3.0 if sidecars and self._restorable() else 0.0, self._restore),
            (1.0 if not self._world.later else 0.0, self._install_next_version),
        ]
        (_, mishap), *_ = self._chance.choices(mishaps, [weight for weight, _ in mishaps])
        return mishap()

    def _end_a_holder(self) -> None:
        holders = [promise.holder for promise in self._word.live()]
        holders += [asked["holder"] for asked in self._word.unanswered.values()]
        if holders:
            self._chance.choice(holders).end()

    def _let_time_pass(self) -> None:
        self._world.pass_time(self._chance.choice(TTL_SECONDS) * SECOND_NS)

    def _lose_the_ledger(self) -> str:
        """As on a diskless node, or set aside because it was damaged: what is known stands in sidecars."""
        self._word.ledger_lost(self._world.outside(), self._world.clock.now_ns)
        self._world.lose_ledger()
        return "rebuild"

    def _restorable(self) -> bool:
        """Whether there is a backup, and each lease in it lives on: one that ended would come back."""
        if self._world.kept_backup is None:
            return False
        copy = self._world.ledger_of_backup()
        open_then = {lease.id for lease in copy.leases.values() if lease.state in OPEN or lease.holds}
        return open_then <= set(self._word.sure(self._world.clock.now_ns))

    def _restore(self) -> str:
        """As the handbook says it: with the agent stopped, the copy in the ledger's place, its log gone."""
        self._word.ledger_restored(self._world.outside(), self._world.clock.now_ns)
        self._world.restore()
        return "restore"

    def _install_next_version(self) -> str:
        """Every agent from here on is of a version whose schema is one revision on."""
        self._world.later = True
        return "upgrade"

    # -- while one runs ---------------------------------------------------------------------------------

    def verb(self) -> tuple[str, Asked]:
        """A verb that makes sense now, with what it needs."""
        live = [
            promise
            for promise in self._word.live()
            if not promise.must_end(self._world.clock.now_ns + 5 * SECOND_NS)
        ]
        sure = [promise for promise in live if not promise.may_end]  # the others may be in their release
        attachable = [each for each in sure if not each.attached and each.holder.alive()]
        repeatable = [asked for asked in self._word.unanswered.values() if asked["holder"].alive()]
        timed = [each for each in sure if each.anchor == "ttl"]
        mortal = [each for each in live if each.anchor not in ("external", "ttl" * self._world.real_time)]
        choices: list[tuple[float, Callable[[], tuple[str, Asked]]]] = [
            (6.0 if len(live) < FEW_LIVE else 3.0 if len(live) < MOST_LIVE else 0.0, self._grant),
            (3.0 if repeatable else 0.0, lambda: self._again(repeatable)),
            (1.0, lambda: ("reconcile", {})),
            (0.7, self._backup),
            (3.0 if attachable else 0.0, lambda: self._attach(attachable)),
            (1.0 if timed else 0.0, lambda: self._renew(timed)),
            (2.0 if live else 0.0, lambda: self._release(live)),
            (2.0 if mortal else 0.0, lambda: self._reap(mortal)),
        ]
        (_, chosen), *_ = self._chance.choices(choices, [weight for weight, _ in choices])
        return chosen()

    def _grant(self) -> tuple[str, Asked]:
        uid = self._chance.choice(UIDS)
        anchor = self._chance.choice(("ttl", "process", "cgroup", *(("external",) if uid == 0 else ())))
        holder = self._world.holder(uid, in_job=self._chance.random() < 0.5)
        return "grant", {
            "holder": holder,
            "uid": uid,
            "pid": holder.pid,
            "anchor": anchor,
            "ttl": self._chance.choice(TTL_SECONDS) if anchor == "ttl" else None,
            "request_id": f"request-{next(self._names)}",
            "cus": self._chance.choice((2, 4, 8, 16)),
            "vram_bytes": self._chance.randint(1, 3) * GIB // 2,
        }

    def _again(self, asked: list[Asked]) -> tuple[str, Asked]:
        """The same request, as a client whose answer never came sends it."""
        return "grant", self._chance.choice(asked)

    def _backup(self) -> tuple[str, Asked]:
        target = self._world.base / f"backup-{next(self._names)}"
        return "backup", {"state": str(self._world.state), "target": str(target)}

    def _attach(self, leases: list[Promise]) -> tuple[str, Asked]:
        promise = self._chance.choice(leases)
        return "attach", {**_of(promise), "pid": promise.holder.pid}

    def _renew(self, leases: list[Promise]) -> tuple[str, Asked]:
        return "renew", {**_of(self._chance.choice(leases)), "ttl": self._chance.choice(TTL_SECONDS)}

    def _release(self, leases: list[Promise]) -> tuple[str, Asked]:
        return "release", _of(self._chance.choice(leases))

    def _reap(self, leases: list[Promise]) -> tuple[str, Asked]:
        """End a holder, or let its time pass: the next look must end the lease."""
        promise = self._chance.choice(leases)
        deadlines = [deadline for deadline in promise.deadlines if deadline is not None]
        if promise.anchor == "ttl" and deadlines:
            self._world.pass_time(max(0, max(deadlines) - self._world.clock.now_ns))
        else:
            promise.holder.end()
        return "reap", {}


def _of(promise: Promise) -> Asked:
    return {"promise": promise, "uid": promise.holder.uid, "lease": promise.id}
