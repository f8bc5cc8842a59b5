"""Attach: let the caller itself into its lease, and renew what lives by time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nodeagent.adapters.attach import attach
from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.adapters.peer import Peer
from nodeagent.adapters.processes import start_time_of
from nodeagent.domain.errors import NotAllowed, StaleLease, UnknownThing
from nodeagent.domain.lease import Anchor, AnchorKind, Lease, LeaseState
from nodeagent.ledger.ledger import Ledger
from nodeagent.ledger.transaction import Transaction
from nodeagent.service.anchoring import Anchors
from nodeagent.service.cgroup_effects import cgroup_in
from nodeagent.service.changes import Changes
from nodeagent.service.job_effects import in_job
from nodeagent.service.locks import LeaseLocks
from nodeagent.service.orders import Caller
from nodeagent.service.plan import Planner
from nodeagent.service.quotas import Quotas
from nodeagent.service.rights import must_own


class Attacher:
    """Moves callers into the cgroups of their leases. The lease's lock keeps a release from slipping in."""

    def __init__(
        self,
        ledger: Ledger,
        tree: CgroupTree | None,
        planner: Planner,
        anchors: Anchors,
        quotas: Quotas,
        locks: LeaseLocks,
        changes: Changes,
        gpu_in_use: Callable[[int], bool],
        entered: Callable[[int, int], None] = lambda lease, pid: None,
        keep: Callable[[int], None] = lambda lease: None,
        latest_ns: Callable[[Lease], int | None] = lambda lease: None,
    ) -> None:
        self._ledger = ledger
        self._tree = tree
        self._planner = planner
        self._anchors = anchors
        self._quotas = quotas
        self._locks = locks
        self._changes = changes
        self._gpu_in_use = gpu_in_use
        self._entered = entered  # told of lease and pid, for what it may leave behind
        self._keep = keep  # told of each lease that is another now, before the answer
        self._latest_ns = latest_ns  # boot time beyond which one that waits is not to be delayed

    def attach(self, caller: Caller, lease_id: int) -> Lease:
        """Move the caller, and nobody else, into the lease; arms an anchor that waited for it.

        Raises:
            NotAllowed: the lease is another's, or the caller may not be moved (why is said).
            StaleLease, UnknownThing: there is no such lease any more, or never was.
            TooMany: the caller asks without end, and each time is written down.
        """
        self._quotas.take_call(caller)
        with self._locks.of(lease_id):
            lease = own_active(self._ledger, caller, lease_id)
            if lease.observed:
                return lease  # there is nowhere to go, and nothing changes for who asks
            _check_open(lease)
            self._admit(lease, _peer(caller))
        self._keep(lease_id)
        self._changes.announce(lease_id)
        return self._read(lease_id)

    def bring(self, lease_id: int, process: Peer, leaves: str | None) -> None:
        """Move a *process* of the lease's holder into it, which may leave the cgroup *leaves* for that.

        In it already is well, and not told again. Raises what `attach` does, but for who may ask.
        """
        with self._locks.of(lease_id):
            lease = _active(self._ledger, lease_id)
            if lease.observed:
                return
            _check_open(lease)
            ref = cgroup_in(self._ledger.effects(lease_id))
            if ref is not None and self._tree and _inside(self._tree.cgroup_of(process.pid), ref):
                return
            self._admit(lease, process, leaves)
        self._keep(lease_id)
        self._changes.announce(lease_id)

    def renew(self, caller: Caller, lease_id: int, ttl_seconds: int | None) -> Lease:
        """Count the lease's time from now again: no longer than until one starts that it passed in the queue.

        Raises NotAllowed where it does not live by time, and what `attach` raises.
        """
        self._quotas.take_call(caller)
        with self._locks.of(lease_id):
            lease = own_active(self._ledger, caller, lease_id)
            if lease.anchor.kind is not AnchorKind.TTL and ttl_seconds is None:
                raise NotAllowed(f"lease {lease_id} is anchored by its {lease.anchor.kind}, not by time")
            anchor = self._renewed(lease, ttl_seconds)
            with self._ledger.write(release=True) as tx:
                tx.set_anchor(lease_id, anchor)
                tx.event("renewed", uid=caller.uid, lease=lease_id)
        self._keep(lease_id)
        self._changes.announce(lease_id)
        return self._read(lease_id)

    def _renewed(self, lease: Lease, ttl_seconds: int | None) -> Anchor:
        latest = self._latest_ns(lease)
        if latest is None:
            return self._anchors.renewed(lease.anchor, ttl_seconds)
        return self._anchors.renewed_until(lease.anchor, ttl_seconds, latest)

    def _admit(self, lease: Lease, peer: Peer, leaves: str | None = None) -> None:
        """Move *peer* in, and write it down."""
        anchor = self._enter(peer, lease, leaves)
        self._entered(lease.id, peer.pid)
        with self._ledger.write(release=True) as tx:
            if anchor.pid is not None:
                self._hold_for(tx, lease.id, anchor)
            if not lease.anchor.armed:
                tx.set_anchor(lease.id, self._anchors.armed(anchor))
            tx.event("attached", uid=peer.uid, lease=lease.id, data={"pid": peer.pid})

    def _enter(self, peer: Peer, lease: Lease, leaves: str | None) -> Anchor:
        if lease.cgroup is None or self._tree is None:
            start = start_time_of(peer.pid)
            if start is None:
                raise NotAllowed(f"process {peer.pid} has ended")
            return replace(lease.anchor, pid=peer.pid, start_time=start)
        try:
            with self._tree.open(self._ref(lease, peer, self._tree)) as cgroup:
                attach(self._tree, cgroup, peer, gpu_in_use=self._gpu_in_use, leaves=leaves)
        except FileNotFoundError:
            raise StaleLease(f"the cgroup of lease {lease.id} is gone") from None
        return replace(lease.anchor, pid=None, start_time=None)

    def _hold_for(self, tx: Transaction, lease_id: int, anchor: Anchor) -> None:
        """Hold the slices until the attached process ends, however often it attaches."""
        effect = self._planner.process(anchor.pid or 0, anchor.start_time or 0, strict=True)
        if not any(known.arguments == effect.arguments for known in tx.effects(lease_id)):
            tx.plan_effect(lease_id, effect.kind, effect.arguments)

    def _ref(self, lease: Lease, peer: Peer, tree: CgroupTree) -> CgroupRef:
        journal = self._ledger.effects(lease.id)
        ref = cgroup_in(journal)
        if ref is None:
            raise StaleLease(f"lease {lease.id} has no cgroup on record")
        # A process in the job's cgroup itself would keep Slurm from dividing it among its steps.
        if any(in_job(one.arguments) for one in journal) and not _inside(tree.cgroup_of(peer.pid), ref):
            raise NotAllowed(f"lease {lease.id} is a Slurm job's: enter the job with srun, or log in to it")
        return ref

    def _read(self, lease_id: int) -> Lease:
        return _known(self._ledger, lease_id)


def own_active(ledger: Ledger, caller: Caller, lease_id: int) -> Lease:
    """The caller's lease, while it is active. Raises NotAllowed, StaleLease or UnknownThing."""
    must_own(caller, _known(ledger, lease_id))
    return _active(ledger, lease_id)


def _active(ledger: Ledger, lease_id: int) -> Lease:
    lease = _known(ledger, lease_id)
    if lease.state in (LeaseState.QUEUED, LeaseState.PREPARING):
        raise NotAllowed(f"lease {lease_id} is still {lease.state}")
    if lease.state is not LeaseState.ACTIVE:
        raise StaleLease(f"lease {lease_id} is {lease.state}: {lease.reason or 'it has ended'}")
    return lease


def _peer(caller: Caller) -> Peer:
    return Peer(caller.pid, caller.uid, caller.gid, tuple(caller.groups), caller.pidfd)


def _inside(path: str | None, ref: CgroupRef) -> bool:
    return path is not None and f"{path}/".startswith(f"{ref.path}/")


def _known(ledger: Ledger, lease_id: int) -> Lease:
    lease = ledger.lease(lease_id)
    if lease is None:
        raise UnknownThing(f"there is no lease {lease_id}")
    return lease


def check_no_container(lease: Lease) -> None:
    """Refuse what would be in a container's lease and not in the container."""
    if lease.anchor.kind is AnchorKind.CONTAINER or lease.request.cdi:
        # It would keep the engine from dividing the lease's cgroup, and has none of the container's limits.
        raise NotAllowed(f"lease {lease.id} is a container's: run the command in it, as by docker exec")


def _check_open(lease: Lease) -> None:
    """Refuse to let a process in that would not be held as the lease states: threat 19."""
    check_no_container(lease)
    if lease.guarantee is not None and lease.guarantee.for_one_command:
        raise NotAllowed(
            f"lease {lease.id} is stated memory={lease.guarantee.memory}, ipc={lease.guarantee.ipc}: "
            "only the command that it was taken for runs in it"
        )
