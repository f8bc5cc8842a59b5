"""Anchors: what proves that a holder lives, from the caller's wish to the look at the node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.adapters.processes import alive, leads_its_group, start_time_of, uids_of
from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.container import Container, Life, Sighting, over
from nodeagent.domain.errors import InvalidField, NotAllowed
from nodeagent.domain.lease import Anchor, AnchorKind, Lease
from nodeagent.service.bearers import Bearers
from nodeagent.service.orders import AnchorOrder, Caller


@dataclass(frozen=True, slots=True)
class AnchorLimits:
    """Seconds."""

    ttl: int = 900
    max_ttl: int = 86_400
    start: int = 60  # an anchor that was never seen alive dies after this


class Anchors:
    """Makes anchors and looks whether they still hold."""

    def __init__(
        self, limits: AnchorLimits, clock: Clock, tree: CgroupTree | None, bearers: Bearers | None = None
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._tree = tree
        self._bearers = bearers  # None: no lease is a container's

    def open(self, wish: AnchorOrder, caller: Caller) -> Anchor:
        """The anchor for a new lease.

        Raises:
            InvalidField: the process or cgroup to adopt does not exist.
            NotAllowed: it is not the caller's.
        """
        ttl = self.ttl(wish.ttl_seconds, wish.max_ttl_seconds)
        if wish.kind is AnchorKind.TTL:
            return Anchor(AnchorKind.TTL, armed=True, deadline_ns=self._in(ttl), ttl_seconds=ttl)
        limit = ttl if wish.ttl_seconds else wish.max_ttl_seconds
        if wish.kind is AnchorKind.EXTERNAL:
            return Anchor(
                AnchorKind.EXTERNAL, armed=True, ttl_seconds=limit, deadline_ns=limit and self._in(limit)
            )
        if wish.kind is AnchorKind.PROCESS:
            return self._of_process(wish.pid or caller.pid, caller, limit)
        if wish.cgroup is not None:
            return self._of_cgroup(wish.cgroup, caller, limit)
        if wish.container is not None:
            return self._of_container(wish.container, caller, limit, self._most(wish.max_ttl_seconds))
        return Anchor(
            AnchorKind.CGROUP if self._tree else AnchorKind.PROCESS,
            ttl_seconds=limit,
            deadline_ns=self._in(self._limits.start),
            pid=caller.pid,  # until it is armed, the lease also ends with the process that asked
            start_time=start_time_of(caller.pid),
        )

    def ttl(self, asked: int | None, most: int | None = None) -> int:
        """Seconds within the site's bounds, and a class's *most*. Raises InvalidField beyond them."""
        most = self._most(most)
        if asked is not None and not 0 < asked <= most:
            raise InvalidField("ttl_seconds", f"must lie between 1 and {most}")
        return asked or min(self._limits.ttl, most)

    def _most(self, of_class: int | None) -> int:
        return min(self._limits.max_ttl, of_class or self._limits.max_ttl)

    def started(self, anchor: Anchor) -> Anchor:
        """*anchor* with its time counted from now, when the lease becomes active after a wait."""
        if not anchor.armed:
            own = anchor.container and anchor.container.start_seconds
            return replace(anchor, deadline_ns=self._in(own or self._limits.start))
        return replace(anchor, deadline_ns=self._in(anchor.ttl_seconds) if anchor.ttl_seconds else None)

    def armed(self, anchor: Anchor) -> Anchor:
        """*anchor* once its holder was seen alive: from now on only its ttl, if any, ends it by time."""
        deadline = self._in(anchor.ttl_seconds) if anchor.ttl_seconds else None
        return replace(anchor, armed=True, deadline_ns=deadline)

    def renewed(self, anchor: Anchor, ttl_seconds: int | None) -> Anchor:
        ttl = self.ttl(ttl_seconds or anchor.ttl_seconds)
        return replace(anchor, ttl_seconds=ttl, deadline_ns=self._in(ttl))

    def renewed_until(self, anchor: Anchor, ttl_seconds: int | None, latest_ns: int) -> Anchor:
        """The same, but no longer than until *latest_ns*; what it has it keeps.

        One that waits for its holder keeps its start deadline, and the time that it has from then on is cut.
        """
        renewed = self.renewed(anchor, ttl_seconds)
        if renewed.deadline_ns is None or renewed.ttl_seconds is None:
            return renewed
        # Without a time until now it gets the one that it asked for.
        had = anchor.deadline_ns or renewed.deadline_ns
        if anchor.armed:
            return replace(renewed, deadline_ns=min(renewed.deadline_ns, max(had, latest_ns)))
        left = max(1, (latest_ns - self._clock.boot_ns()) // SECOND_NS)
        most = max(left, anchor.ttl_seconds or 0)
        return replace(renewed, deadline_ns=had, ttl_seconds=min(renewed.ttl_seconds, most))

    def loose(self, anchor: Anchor) -> Anchor:
        """*anchor* for a lease that holds nothing, and so has no cgroup, and no container bound to it."""
        if anchor.container is None and (anchor.kind is not AnchorKind.CGROUP or anchor.cgroup is not None):
            return anchor
        kind = AnchorKind.PROCESS if anchor.pid is not None else AnchorKind.TTL
        ttl = anchor.ttl_seconds if kind is AnchorKind.PROCESS else self.ttl(anchor.ttl_seconds)
        return replace(
            anchor,
            kind=kind,
            armed=True,
            ttl_seconds=ttl,
            deadline_ns=self._in(ttl) if ttl else None,
            container=None,
        )

    def gave_up(self, lease: Lease) -> str | None:
        """Why a queued lease need not wait any more, or None; its time counts only once it is active."""
        if lease.boot_id != self._clock.boot_id:
            return "the node was rebooted"
        return self._process_dead(lease.anchor)

    def dead(self, lease: Lease) -> str | None:
        """Why the anchor of *lease* no longer holds, or None while it does."""
        anchor, now = lease.anchor, self._clock.boot_ns()
        if lease.boot_id != self._clock.boot_id:
            return "the node was rebooted"
        if not anchor.armed and self.seen_alive(anchor):
            return None
        if anchor.deadline_ns is not None and now >= anchor.deadline_ns:
            return "its time is up" if anchor.armed else "nothing entered it before its start deadline"
        if anchor.container is not None:
            return self._container_over(lease, anchor.container)
        if not anchor.armed:
            return self._process_dead(anchor)
        looks: dict[AnchorKind, Callable[[Anchor], str | None]] = {
            AnchorKind.PROCESS: self._process_dead,
            AnchorKind.CGROUP: self._cgroup_dead,
        }
        look = looks.get(anchor.kind)
        return look(anchor) if look else None

    def seen_alive(self, anchor: Anchor) -> bool:
        """Whether somebody is in, or its container runs, though nobody wrote it down yet."""
        return self._entered(anchor) or self._runs(anchor)

    def _entered(self, anchor: Anchor) -> bool:
        """Whether somebody is in, though nobody wrote it down: an agent that died, or a restored backup."""
        known = self._tree is not None and anchor.cgroup is not None and anchor.inode is not None
        return known and self._cgroup_dead(anchor) is None

    def _runs(self, anchor: Anchor) -> bool:
        held, bearers = anchor.container, self._bearers
        return held is not None and bearers is not None and bearers.engines.life(held) is Life.ALIVE

    def _process_dead(self, anchor: Anchor) -> str | None:
        if anchor.pid and anchor.start_time is not None and not alive(anchor.pid, anchor.start_time):
            return f"process {anchor.pid} ended"
        return None

    def _cgroup_dead(self, anchor: Anchor) -> str | None:
        if self._tree is None or anchor.cgroup is None or anchor.inode is None:
            return None
        try:
            with self._tree.open(CgroupRef(anchor.cgroup, anchor.inode)) as cgroup:
                return None if cgroup.populated() else "its cgroup is empty"
        except FileNotFoundError:
            return "its cgroup is gone"

    def _of_process(self, pid: int, caller: Caller, limit: int | None) -> Anchor:
        start = start_time_of(pid)
        if start is None or not leads_its_group(pid):
            raise InvalidField("anchor.pid", f"no process {pid} runs")
        if pid != caller.pid and not caller.administrator and uids_of(pid) != (caller.uid,) * 4:
            raise NotAllowed(f"process {pid} is not yours")
        return Anchor(
            AnchorKind.PROCESS,
            armed=True,
            pid=pid,
            start_time=start,
            ttl_seconds=limit,
            deadline_ns=limit and self._in(limit),
        )

    def _container_over(self, lease: Lease, held: Container) -> str | None:
        anchor, ended = lease.anchor, self._process_dead(lease.anchor)
        if self._bearers is None:  # turned off since
            return ended or (self._cgroup_dead(anchor) if anchor.armed else None)
        sighting = Sighting(
            self._bearers.engines.life(held),
            self._entered(anchor),
            ended,
            ended is not None and held.id is None and self._bearers.none(lease),
        )
        return over(held, sighting, armed=anchor.armed)

    def _of_container(self, container: Container, caller: Caller, limit: int | None, most: int) -> Anchor:
        """Until one is bound the lease also ends with who asked, unless it said how long that may take.

        Raises InvalidField where that is longer than *most* seconds, or there are none here.
        """
        if self._bearers is None:
            raise InvalidField("anchor.kind", "no lease is a container's here: turned off by docker.enabled")
        self._bearers.engines.ask(container.engine)
        patient = container.start_seconds is not None
        if (container.start_seconds or 0) > most:
            raise InvalidField("anchor.start_seconds", f"must lie between 1 and {most}")
        return Anchor(
            AnchorKind.CONTAINER,
            ttl_seconds=limit,
            deadline_ns=self._in(container.start_seconds or self._limits.start),
            pid=None if patient else caller.pid,
            start_time=None if patient else start_time_of(caller.pid),
            container=container,
        )

    def _of_cgroup(self, path: str, caller: Caller, limit: int | None) -> Anchor:
        if not caller.administrator:
            raise NotAllowed("only an administrator may adopt a cgroup; adopt a process instead")
        if self._tree is None:
            raise InvalidField("anchor.cgroup", "this agent has no cgroup2 mount that it may use")
        ref = self._tree.resolve(path)
        if ref is None:
            raise InvalidField("anchor.cgroup", f"{path}: no such cgroup below the cgroup2 mount")
        return Anchor(
            AnchorKind.CGROUP,
            armed=True,
            cgroup=ref.path,
            inode=ref.inode,
            ttl_seconds=limit,
            deadline_ns=limit and self._in(limit),
        )

    def _in(self, seconds: int) -> int:
        return self._clock.boot_ns() + seconds * SECOND_NS
