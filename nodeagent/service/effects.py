"""Effects: every change outside the ledger, journaled before the act. Use cases only walk the journal.

A new means of enforcement is a new effect; no use case ever lists them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nodeagent.domain.records import EffectRecord, EffectState
from nodeagent.ledger.ledger import Ledger

Arguments = Mapping[str, Any]
Evidence = Mapping[str, Any]

PAUSE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Pending:
    """An undo that is not proved yet: *why* says what is still in the way."""

    why: str


class Effect(Protocol):
    """An idempotent triple. Each part may be called again after a crash at any instruction."""

    def apply(self, arguments: Arguments) -> Evidence:
        """Make the change, or find it made. Raises OutsideFault where the node says no."""

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        """Read back what holds now. Raises OutsideFault where it is not what was applied."""

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        """Take the change back, or say what it still waits for. Never raises for what is gone already."""


@dataclass(frozen=True, slots=True)
class Planned:
    """An effect that the journal is to hold before anything is done."""

    kind: str
    arguments: Arguments


class Journal:
    """Walks a lease's journal: forwards to apply, backwards to undo."""

    def __init__(
        self, ledger: Ledger, effects: Mapping[str, Effect], *, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._ledger = ledger
        self._effects = effects
        self._pause = pause

    def apply(self, lease_id: int) -> tuple[EffectRecord, ...]:
        """Apply and verify every planned effect in order; the first fault stops the walk and is raised."""
        for record in self._ledger.effects(lease_id):
            if record.state is EffectState.PLANNED:
                effect = self._effects[record.kind]
                evidence = dict(effect.apply(record.arguments))
                self._mark(record, EffectState.APPLIED, evidence)
                evidence |= effect.verify(record.arguments, evidence)
                self._mark(record, EffectState.VERIFIED, evidence)
        return self._ledger.effects(lease_id)

    def undo(self, lease_id: int, seconds: float) -> Pending | None:
        """Undo every effect, newest first; None is the proof that nothing is left.

        Effects that are not proved gone within *seconds* end the walk: what is under them stays.
        """
        deadline = time.monotonic() + seconds
        for record in reversed(self._ledger.effects(lease_id)):
            if record.state is EffectState.UNDONE:
                continue
            outcome = self._undo_one(record, deadline)
            if isinstance(outcome, Pending):
                return outcome
            self._mark(record, EffectState.UNDONE, {**(record.evidence or {}), **outcome})
        return None

    def _undo_one(self, record: EffectRecord, deadline: float) -> Evidence | Pending:
        effect = self._effects[record.kind]
        while True:
            outcome = effect.undo(record.arguments, record.evidence or {})
            if not isinstance(outcome, Pending) or time.monotonic() >= deadline:
                return outcome
            self._pause(PAUSE_SECONDS)

    def _mark(self, record: EffectRecord, state: EffectState, evidence: Evidence) -> None:
        with self._ledger.write(release=state is EffectState.UNDONE) as tx:
            tx.mark_effect(record.id, state, evidence)


def evidence_of(records: Sequence[EffectRecord], kind: str) -> Evidence | None:
    """What the effect of *kind* proved, or None where the lease has none."""
    return next((record.evidence or {} for record in records if record.kind == kind), None)
