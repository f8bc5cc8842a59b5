"""Leases that do no work for long: told of, and released where the site says so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import structlog

from nodeagent.domain import idle, watch
from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.idle import FEWEST_LOOKS, Idle, Quiet
from nodeagent.domain.lease import HolderKind, Lease
from nodeagent.domain.watch import Sample
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.changes import Changes
from nodeagent.service.release import Releaser
from nodeagent.service.sampling import Look

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """The site's settings. *after_seconds* 0: no lease is idle. *release*: ends *warn_seconds* later."""

    after_seconds: float = 0.0
    release: bool = False
    warn_seconds: float = 600.0
    exempt: frozenset[HolderKind] = frozenset({HolderKind.SLURM})


class IdleLeases:
    """Follows each lease from look to look; after a restart of the agent all begin anew.

    *measured*: whether this node counts its processes' use at all. *sdma_us*: their copies, µs; it is slow.
    *known* is told at each look who is idle.
    """

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        changes: Changes,
        releaser: Releaser,
        sdma_us: Callable[[Collection[int]], int],
        policy: IdlePolicy,
        *,
        measured: Callable[[], bool],
        spared: Callable[[], bool],
        known: Callable[[Mapping[int, Idle]], None],
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._changes = changes
        self._releaser = releaser
        self._sdma_us = sdma_us
        self._policy = policy
        self._measured = measured
        self._spared = spared  # whether nobody is to be ended now
        self._known = known
        self._quiet: dict[int, Quiet] = {}
        self._idle: dict[int, Idle] = {}

    def note(self, look: Look) -> None:
        """Tell of each lease that is idle, once for as long as it is; end those who were told before."""
        if not self._policy.after_seconds:
            return
        now = self._clock.boot_ns()
        strangers = idle.strangers_on(look.sample, look.inventory)
        judged = [one for one in look.active if self._is_judged(one, look, strangers)]
        self._quiet = {lease.id: self._follow(lease.id, look.sample, now) for lease in judged}
        for gone in self._idle.keys() - {lease.id for lease in judged if self._is_idle(lease.id, now)}:
            del self._idle[gone]
        for lease in judged:
            if self._is_idle(lease.id, now):
                self._act(lease, now)
        self._known(dict(self._idle))

    def _is_judged(self, lease: Lease, look: Look, strangers: Collection[str]) -> bool:
        if lease.observed or lease.holder.kind in self._policy.exempt or not self._measured():
            return False
        begun = lease.id in self._quiet or idle.has_begun(lease, look.sample)
        return begun and not idle.unmeasured(lease, look.sample, look.inventory, strangers)

    def _follow(self, lease_id: int, sample: Sample, now: int) -> Quiet:
        """Go on from the last look. The slow counter is read where work ends, and before it has a result."""
        before, activity = self._quiet.get(lease_id), watch.activity(sample, lease_id)
        if before is None or idle.works(before.activity, activity):
            return Quiet(activity, now, 0, -1)
        looks, pids = before.looks + 1, sample.pids(lease_id)
        if looks == 1:
            return replace(before, looks=looks, sdma_us=self._sdma_us(pids))
        quiet = replace(before, looks=looks)
        if self._is_long(quiet, now) and (copied := self._sdma_us(pids)) != before.sdma_us:
            return Quiet(activity, now, 1, copied)
        return quiet

    def _is_long(self, quiet: Quiet, now: int) -> bool:
        return quiet.looks >= FEWEST_LOOKS and now - quiet.since_ns >= self._policy.after_seconds * SECOND_NS

    def _is_idle(self, lease_id: int, now: int) -> bool:
        return self._is_long(self._quiet[lease_id], now)

    def _act(self, lease: Lease, now: int) -> None:
        seconds = (now - self._quiet[lease.id].since_ns) // SECOND_NS
        told = self._idle.get(lease.id)
        if told is None:
            self._tell(lease, seconds, now)
        elif told.ends_ns is not None and now >= told.ends_ns and not self._spared():
            why = f"idle: no work on its GPUs for {seconds} s"
            self._releaser.end(lease.id, uid=None, reason=why, kind="idle_ended")

    def _tell(self, lease: Lease, seconds: int, now: int) -> None:
        warn = self._policy.warn_seconds if self._policy.release else None
        ends = None if warn is None else now + int(warn * SECOND_NS)
        self._idle[lease.id] = Idle(self._quiet[lease.id].since_ns, ends)
        then = "" if warn is None else f"; it ends in {warn:g} s unless it works"
        reason = f"no work on its GPUs for {seconds} s{then}"
        with self._ledger.write(release=True) as tx:
            tx.event("lease_idle", uid=None, lease=lease.id, reason=reason, data={"seconds": seconds})
        log.warning("a lease is idle", lease=lease.id, why=reason)
        self._changes.announce(lease.id)
