"""Upkeep: what holds a live lease, and was spoiled since it was verified, is applied again."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.errors import AgentError, OutsideFault
from nodeagent.domain.lease import LeaseState
from nodeagent.domain.records import EffectRecord
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.effects import Effect
from nodeagent.service.locks import LeaseLocks
from nodeagent.service.sampling import Look

log = structlog.get_logger()

TELL_SECONDS = 600  # between two events of a lease: its holder may spoil what is its own at every look


class Upkeep:
    """Reads back what the journals of active leases say was applied, and applies what is not so any more.

    *effects*, by kind, are those whose `apply` changes nothing for a holder that runs already.
    """

    def __init__(
        self, ledger: Ledger, clock: Clock, locks: LeaseLocks, effects: Mapping[str, Effect]
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._locks = locks
        self._effects = effects
        self._told_ns: dict[int, int] = {}

    def note(self, look: Look) -> None:
        """Keep up every active lease. What fails of one is raised when all had their turn."""
        faults: list[Exception] = []
        active = {lease.id for lease in look.active}
        for journal in self._ledger.journals(sorted(active), self._effects).values():
            for record in journal:
                try:
                    self._keep(record)
                except (AgentError, OSError) as fault:
                    faults.append(fault)
        self._told_ns = {lease: at for lease, at in self._told_ns.items() if lease in active}
        if faults:
            raise faults[0]

    def _keep(self, record: EffectRecord) -> None:
        effect = self._effects.get(record.kind)
        if effect is None or (wrong := _wrong(effect, record)) is None:
            return
        with self._locks.of(record.lease):
            lease = self._ledger.lease(record.lease)
            if lease is None or lease.state is not LeaseState.ACTIVE:
                return  # its end has begun, and takes everything away
            evidence = effect.apply(record.arguments)
            effect.verify(record.arguments, evidence)
        self._tell(record, wrong)

    def _tell(self, record: EffectRecord, wrong: str) -> None:
        now = self._clock.boot_ns()
        last = self._told_ns.get(record.lease)
        if last is not None and now - last < TELL_SECONDS * SECOND_NS:
            return
        self._told_ns[record.lease] = now
        with self._ledger.write(release=True) as tx:
            data = {"effect": record.kind}
            tx.event("effect_restored", uid=None, lease=record.lease, reason=wrong, data=data)
        log.warning("what holds a lease was spoiled, and is put back", lease=record.lease, why=wrong)


def _wrong(effect: Effect, record: EffectRecord) -> str | None:
    try:
        effect.verify(record.arguments, record.evidence or {})
    except OutsideFault as fault:
        return str(fault)
    return None
