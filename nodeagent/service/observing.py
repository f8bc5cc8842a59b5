"""Requests that are observed: what would be granted is worked out, told and counted, and nothing is held.

Such a lease has no slices: so it takes nothing from those that are enforced, whatever becomes of it. What it
would hold stands in its journal, for the next request to be observed as if it did.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import structlog

from nodeagent.domain.cuset import CuSet
from nodeagent.domain.lease import HeldSlice, HolderKind, Lease, LeaseState, PlacedSlice, SliceState
from nodeagent.domain.records import EffectRecord, Json
from nodeagent.domain.refusals import Refusal
from nodeagent.domain.request import Shape
from nodeagent.ledger.ledger import Ledger
from nodeagent.ledger.transaction import Transaction
from nodeagent.service.effects import Arguments, Effect, Evidence, Pending, Planned
from nodeagent.service.enforcement import Enforcement
from nodeagent.service.orders import Order

log = structlog.get_logger()

OBSERVED = "observed"
GRANTED = "granted"


class ObservedEffect(Effect):
    """Changes nothing: it is in the journal for what it says."""

    def apply(self, arguments: Arguments) -> Evidence:
        return {}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        return {}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        return {}


class Observing:
    """Says which orders are only observed, and remembers what they would hold."""

    def __init__(self, ledger: Ledger, enforcement: Enforcement) -> None:
        self._ledger = ledger
        self._enforcement = enforcement
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def why(self, order: Order) -> str | None:
        """Why *order* is only observed. Never one for a CDI device, which is made of its slices."""
        return None if order.request.cdi else self._enforcement.observed(order.holder_kind)

    def why_lease(self, lease: Lease) -> str | None:
        """The same of a queued lease."""
        return None if lease.request.cdi else self._enforcement.observed(lease.holder.kind)

    def why_kind(self, kind: HolderKind) -> str | None:
        return self._enforcement.observed(kind)

    def held(self) -> tuple[HeldSlice, ...]:
        """What live observed leases would hold."""
        active = {lease.id: lease for lease in self._ledger.live(LeaseState.ACTIVE) if lease.observed}
        return tuple(
            HeldSlice(0, lease, active[lease].holder.uid, placed_of(one), SliceState.HELD)
            for lease, journal in self._ledger.journals(active, (OBSERVED,)).items()
            for record in journal
            for one in _slices(record)
        )

    def write(
        self, tx: Transaction, lease: Lease, placed: tuple[PlacedSlice, ...] | Refusal, why: str
    ) -> None:
        """Journal and tell what *lease* would have been given, or why it would have been refused."""
        refused = isinstance(placed, Refusal)
        slices: list[Json] = [] if isinstance(placed, Refusal) else [json_of(one) for one in placed]
        effect = Planned(OBSERVED, {"slices": slices})
        tx.plan_effect(lease.id, effect.kind, effect.arguments)
        would = placed.code.value if isinstance(placed, Refusal) else GRANTED
        said = f"would be refused: {placed.why}" if isinstance(placed, Refusal) else "would be granted"
        data: dict[str, Json] = {"would": would, "kind": lease.holder.kind.value, "by": why, "slices": slices}
        if isinstance(placed, Refusal):
            data["blockers"] = list(placed.blockers)
        tx.event("observed", uid=lease.holder.uid, lease=lease.id, reason=said, data=data)
        self.count(lease.holder.kind, would if refused else GRANTED)

    def note(self, kind: HolderKind, uid: int, would: str, why: str, data: Mapping[str, Json]) -> None:
        """Tell and count what could not even be booked, as far as the ledger takes that."""
        self.count(kind, would)
        log.info("a request that would not be granted", kind=kind, would=would, why=why, **data)
        if self._ledger.health().writable:
            said = {"would": would, "kind": kind.value, "by": self.why_kind(kind), **data}
            with self._ledger.write(release=True) as tx:
                tx.event("observed", uid=uid, reason=f"would be refused: {why}", data=said)

    def count(self, kind: str, would: str) -> None:
        with self._lock:
            self._counts[str(kind), would] += 1

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Observed requests since the agent started, by holder kind and what would have come of them."""
        with self._lock:
            return dict(self._counts)


def json_of(placed: PlacedSlice) -> dict[str, Any]:
    """*placed* as the journal keeps it."""
    return {one.name: getattr(placed, one.name) for one in fields(placed)} | {"cus": str(placed.cus)}


def placed_of(told: Mapping[str, Any]) -> PlacedSlice:
    """What `json_of` gave."""
    return PlacedSlice(**{**told, "cus": CuSet.parse(told["cus"]), "shape": Shape(told["shape"])})


def _slices(record: EffectRecord) -> list[Mapping[str, Any]]:
    told: Any = record.arguments["slices"]
    return list(told)
