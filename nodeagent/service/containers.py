"""Binds the leases of containers to these, sees them begin, and tells of those that only look like one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from nodeagent.adapters.container_files import ContainerFiles
from nodeagent.domain.container import Container, Engine, Seen
from nodeagent.domain.lease import Anchor, AnchorKind, Lease, LeaseState
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.anchoring import Anchors
from nodeagent.service.bearers import Bearers
from nodeagent.service.changes import Changes
from nodeagent.service.gathering import Gathering
from nodeagent.service.guests import Guests
from nodeagent.service.locks import LeaseLocks

log = structlog.get_logger()


class Wanted(Protocol):
    """What keeps an engine's containers known: see `engine_watch`."""

    def want(self, wanted: bool) -> None: ...


class Containers:
    """What the reconciler does for containers at a look; *keep* is told of each lease that has changed."""

    def __init__(
        self,
        ledger: Ledger,
        bearers: Bearers,
        anchors: Anchors,
        files: ContainerFiles,
        watches: Mapping[Engine, Wanted],
        gathering: Gathering,
        guests: Guests,
        locks: LeaseLocks,
        changes: Changes,
        keep: Callable[[int], None] = lambda lease: None,
    ) -> None:
        self._ledger = ledger
        self._bearers = bearers
        self._engines = bearers.engines
        self._anchors = anchors
        self._files = files
        self._watches = watches
        self._gathering = gathering
        self._guests = guests
        self._locks = locks
        self._changes = changes
        self._keep = keep
        self._told: frozenset[str] = frozenset()  # the copies that were told of

    def look(self) -> None:
        """Bind what can be bound, arm what has begun, and gather processes where an engine does not."""
        live = self._ledger.live()
        leases = [one for one in live if one.anchor.kind is AnchorKind.CONTAINER]
        guests = self._guests.of([one.id for one in live])
        held = [(one.id, one.anchor.container) for one in leases if one.anchor.container]
        held += [(one.lease, one.held) for one in guests]
        engines = {container.engine for _, container in held}
        for engine, watch in self._watches.items():
            watch.want(engine in engines)
        active = [one for one in leases if one.state is LeaseState.ACTIVE]
        for lease in active:
            self._look_at(lease)
        self._guests.look(guests)
        running = {one.id for one in live if one.state is LeaseState.ACTIVE}
        self._gathering.look([(lease, container) for lease, container in held if lease in running])
        self._tell_copies(active)

    def named(self, name: str) -> Sequence[int]:
        """The live leases that are bound to a container of that name, or id, or have it as a guest."""
        live = self._ledger.live()
        bound = [(one.id, one.anchor.container) for one in live if one.anchor.container]
        bound += [(one.lease, one.held) for one in self._guests.of([one.id for one in live])]
        return sorted({lease for lease, held in bound if held and self._goes_by(held, name)})

    def _goes_by(self, held: Container, name: str) -> bool:
        sight = self._engines.sight(held.engine)
        seen = sight.containers.get(held.id) if sight and held.id else None
        return (seen or Seen(held.id or "", (), "", {})).goes_by(name)

    def _look_at(self, lease: Lease) -> None:
        held = lease.anchor.container
        if held is None:
            return
        found = self._found(lease, held) if held.id is None else None
        if found is None and not self._begins(lease.anchor):
            return
        with self._locks.of(lease.id):
            now = self._ledger.lease(lease.id)
            if now is None or now.state is not LeaseState.ACTIVE or now.anchor != lease.anchor:
                return
            self._write(lease.id, self._changed(now.anchor, held, found), found)
        if found is not None:
            self._files.bind(lease.id, found.id)
        self._keep(lease.id)
        self._changes.announce(lease.id)

    def _found(self, lease: Lease, held: Container) -> Seen | None:
        """The container to bind: the first one with the ticket."""
        sight = self._engines.sight(held.engine)
        bearing = self._bearers.of(lease.id, sight) if sight else ()
        taken = self._files.bound(lease.id)  # by the plugin, which saw the ticket spent
        known = [one for one in bearing if taken in (None, one.id)]
        return known[0] if known else None

    def _begins(self, anchor: Anchor) -> bool:
        return not anchor.armed and self._anchors.seen_alive(anchor)

    def _changed(self, anchor: Anchor, held: Container, found: Seen | None) -> Anchor:
        """Who asked for the lease does not count any more: the container does."""
        alone = replace(anchor, pid=None, start_time=None)
        if found is not None:
            alone = replace(alone, container=replace(held, id=found.id))
        return self._anchors.armed(alone) if not anchor.armed and self._anchors.seen_alive(alone) else alone

    def _write(self, lease: int, anchor: Anchor, found: Seen | None) -> None:
        with self._ledger.write(release=True) as tx:
            tx.set_anchor(lease, anchor)
            if found is not None:
                tx.event("bound", uid=None, lease=lease, data={"container": found.id})
        if found is not None:
            log.info("a container is bound", lease=lease, container=found.id[:12])

    def _tell_copies(self, active: Sequence[Lease]) -> None:
        """Tell of containers with the ticket of a lease that has another one, once for each."""
        copies: dict[str, int] = {}
        for lease in active:
            held = lease.anchor.container
            sight = self._engines.sight(held.engine) if held and held.id else None
            if held is not None and sight is not None:
                bearing = self._bearers.of(lease.id, sight)
                copies |= {one.id: lease.id for one in bearing if one.id != held.id}
        new = copies.keys() - self._told
        if new:
            with self._ledger.write(release=True) as tx:
                for container in sorted(new):
                    tx.event(
                        "foreign_container",
                        uid=None,
                        lease=copies[container],
                        reason="it has the ticket of a lease that another container is bound to",
                        data={"container": container},
                    )
        self._told = frozenset(copies)
