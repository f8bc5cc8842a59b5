"""Which lease a process is in already: what an engine starts for it must not be beside that."""

from __future__ import annotations

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.domain.clock import Clock
from nodeagent.domain.errors import InLease, NotAllowed
from nodeagent.domain.lease import Lease
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.orders import Caller
from nodeagent.service.owners import owners


class Nesting:
    """Knows it by the process's cgroup alone. *tree* None: leases have none, so nobody is in one."""

    def __init__(self, ledger: Ledger, clock: Clock, tree: CgroupTree | None) -> None:
        self._ledger = ledger
        self._clock = clock
        self._tree = tree

    def lease_of(self, pid: int) -> Lease | None:
        """The innermost lease that *pid* is in."""
        owner = owners(self._ledger, self._tree, self._clock).by_cgroup(pid)
        return None if owner is None else self._ledger.lease(owner)

    def check(self, caller: Caller, *, cdi: bool) -> None:
        """Refuse a lease for containers to a caller in a lease, a job's above all.

        An engine would start them beside the job: with slices of their own, more than the job was given, and
        alive when the job is cancelled.

        Raises:
            InLease: it is the caller's own, so that it may have a guest in there.
            NotAllowed: it may not. Both name the lease.
        """
        lease = self.lease_of(caller.pid)
        if lease is None:
            return
        named = f"this process is in lease {lease.id} of {lease.holder.kind}:{lease.holder.id}"
        if lease.holder.uid != caller.uid:
            raise NotAllowed(f"{named}, which is another user's")
        if cdi:
            raise NotAllowed(
                f"{named}, and containers of a CDI device may be anywhere: they would have more than that,"
                " and outlive it. Start them by `gpulease docker run`, or take the device from outside"
            )
        raise InLease(lease.id, f"{named}: its containers share that (POST /v1/leases/{lease.id}/containers)")
