"""Effects: every change outside the ledger, journaled before the act. Use cases only walk the journal.

A new means of enforcement is a new effect; no use case ever lists them.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import structlog

from nodeagent.domain.clock import Clock
from nodeagent.domain.errors import AgentError, OutsideFault
from nodeagent.domain.records import EffectRecord, EffectState
from nodeagent.ledger.ledger import Ledger
from nodeagent.ledger.transaction import Transaction

log = structlog.get_logger()

Arguments = Mapping[str, Any]
Evidence = Mapping[str, Any]

PAUSE_SECONDS = 0.02
_THERE = (EffectState.APPLIED, EffectState.VERIFIED)


@dataclass(frozen=True, slots=True)
class Pending:
    """An undo that is not proved yet: *why* says what is still in the way.

    *patient*: it waits on purpose, and is not to be given up. *alive*: it waits for a process. *devices*:
    those whose slices are in doubt, where the others are not.
    """

    why: str
    patient: bool = False
    alive: bool = False
    devices: frozenset[str] | None = None


class Effect(Protocol):
    """An idempotent triple. Each part may be called again after a crash at any instruction."""

    def apply(self, arguments: Arguments) -> Evidence:
        """Make the change, or find it made. Raises OutsideFault where the node says no."""

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        """Read back what holds now. Raises OutsideFault where it is not what was applied."""

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        """Take the change back, or say what it still waits for. Never raises for what is gone already."""


class Wait(Effect):
    """An effect that changes nothing: it is in the journal for its undo, which waits for something."""

    def apply(self, arguments: Arguments) -> Evidence:
        return {}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        return {}


class WaitInBoot(Wait):
    """A wait for something that no reboot outlives. Its arguments hold the ``boot_id`` that it is of."""

    rebooted: ClassVar[Evidence]  # what the journal says where the node was rebooted since

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        return self.wait(arguments) if arguments["boot_id"] == self._clock.boot_id else self.rebooted

    @abstractmethod
    def wait(self, arguments: Arguments) -> Evidence | Pending:
        """What came of it, or what it still waits for; in the boot of *arguments*."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a lease's own programs say of themselves: for people to look at; it decides nothing."""

    vram_bytes: tuple[int, ...]  # by slice
    denied: int  # requests that were refused


@runtime_checkable
class Telling(Protocol):
    """An effect that the lease's programs answer to."""

    def told(self, arguments: Arguments) -> Told:
        """What they say now. Raises OutsideFault where it cannot be read."""


@runtime_checkable
class Concluding(Protocol):
    """An effect that is made of what those before it in the journal gave."""

    def conclude(self, arguments: Arguments, before: Sequence[Done]) -> Evidence:
        """The last part of its act; again is harmless. Raises OutsideFault where the node says no."""


@dataclass(frozen=True, slots=True)
class Planned:
    """An effect that the journal is to hold before anything is done."""

    kind: str
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one entry, for the journal to record."""

    record: EffectRecord
    state: EffectState
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Undoing:
    """How far a walk back came; without *pending*, at the entry *at*, it is proof that nothing is left."""

    done: tuple[Done, ...]
    pending: Pending | None = None
    at: EffectRecord | None = None


class Journal:
    """Walks a lease's journal: forwards to apply, backwards to undo.

    The walk itself writes nothing: its outcome is recorded with the change of state that it allows, in one
    transaction. A crash in between repeats the walk, which every effect bears.
    """

    def __init__(
        self, ledger: Ledger, effects: Mapping[str, Effect], *, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._ledger = ledger
        self._effects = effects
        self._concluding = {kind: one for kind, one in effects.items() if isinstance(one, Concluding)}
        self._pause = pause

    def apply(self, lease_id: int) -> tuple[Done, ...]:
        """Apply and verify every effect in order; the first fault ends the walk and is raised.

        Not one that is undone: it was planned for a queued lease, which is only observed by now.
        """
        done: list[Done] = []
        for record in self._ledger.effects(lease_id):
            if record.state is not EffectState.UNDONE:
                done.append(self._apply_one(record, done))
        return tuple(done)

    def apply_more(self, lease_id: int, more: Collection[int]) -> tuple[Done, ...]:
        """Apply and verify the entries *more* of a lease that is active already; as `apply`."""
        journal = self._ledger.effects(lease_id)
        before = [Done(one, one.state, one.evidence or {}) for one in journal if one.state in _THERE]
        done: list[Done] = []
        for one in journal:
            if one.id in more:
                done.append(self._apply_one(one, [*before, *done]))
        return tuple(done)

    def undo_one(self, record: EffectRecord) -> Done | Pending:
        """Take one entry back, as far as that goes at once."""
        outcome = self._undo_one(record, deadline=0)
        if isinstance(outcome, Pending):
            return outcome
        return Done(record, EffectState.UNDONE, {**(record.evidence or {}), **outcome})

    def undo(self, lease_id: int, seconds: float) -> Undoing:
        """Undo every effect, newest first.

        One that is not proved gone within *seconds* ends the walk: what is under it stays.
        """
        deadline = time.monotonic() + seconds
        done: list[Done] = []
        for record in reversed(self._ledger.effects(lease_id)):
            if record.state is EffectState.UNDONE:
                continue
            outcome = self._undo_one(record, deadline)
            if isinstance(outcome, Pending):
                return Undoing(tuple(done), outcome, record)
            done.append(Done(record, EffectState.UNDONE, {**(record.evidence or {}), **outcome}))
        return Undoing(tuple(done))

    def told(self, lease_id: int) -> Told | None:
        """What the lease's programs say of themselves, where one of its effects hears them."""
        for record in self._ledger.effects(lease_id):
            effect = self._effects.get(record.kind)
            if isinstance(effect, Telling) and record.state is EffectState.VERIFIED:
                try:
                    return effect.told(record.arguments)
                except OutsideFault as fault:
                    log.info("a lease's programs cannot be heard", lease=lease_id, why=str(fault))
        return None

    def _apply_one(self, record: EffectRecord, before: Sequence[Done]) -> Done:
        effect = self._effects.get(record.kind)
        if effect is None:
            raise OutsideFault("journal", _no_means(record))
        evidence = dict(effect.apply(record.arguments))
        evidence |= effect.verify(record.arguments, evidence)
        if concluding := self._concluding.get(record.kind):
            evidence |= concluding.conclude(record.arguments, before)
        return Done(record, EffectState.VERIFIED, evidence)

    def _undo_one(self, record: EffectRecord, deadline: float) -> Evidence | Pending:
        effect = self._effects.get(record.kind)
        if effect is None:
            return Pending(_no_means(record))
        while True:
            outcome = _try_undo(effect, record)
            if not isinstance(outcome, Pending) or time.monotonic() >= deadline:
                return outcome
            self._pause(PAUSE_SECONDS)


def _try_undo(effect: Effect, record: EffectRecord) -> Evidence | Pending:
    try:
        return effect.undo(record.arguments, record.evidence or {})
    except (AgentError, OSError) as fault:
        return Pending(str(fault))  # no proof; a lease whose node says no must not stay releasing for ever
    except Exception as fault:
        log.exception("an effect failed by a fault of the agent", kind=record.kind, lease=record.lease)
        return Pending(f"{record.kind}: {fault!r}: a fault of the agent")


def _no_means(record: EffectRecord) -> str:
    return f"{record.kind}: the agent was started without the right or the mount that this was done with"


def record(tx: Transaction, done: Sequence[Done]) -> None:
    """Write what a walk did into the journal."""
    for one in done:
        tx.mark_effect(one.record.id, one.state, one.evidence)


def evidence_of(done: Sequence[Done], kind: str) -> Evidence | None:
    """What the effect of *kind* proved, or None where the lease has none."""
    return next((one.evidence for one in done if one.record.kind == kind), None)
