"""Which lease a process is in already, for what cannot nest below that."""

from __future__ import annotations

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.domain.clock import Clock
from nodeagent.domain.errors import NotAllowed
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.owners import owners


class Nesting:
    """Refuses containers to processes in leases. *tree* None: leases have no cgroups, so nobody is in one."""

    def __init__(self, ledger: Ledger, clock: Clock, tree: CgroupTree | None) -> None:
        self._ledger = ledger
        self._clock = clock
        self._tree = tree

    def check(self, pid: int) -> None:
        """Refuse a container to *pid* in a lease, a job's above all.

        The engine would start it beside the job: with slices of its own, more than the job was given, and
        alive when the job is cancelled.

        Raises:
            NotAllowed: it names the lease, and what to do.
        """
        owner = owners(self._ledger, self._tree, self._clock).by_cgroup(pid)
        lease = None if owner is None else self._ledger.lease(owner)
        if lease is not None:
            raise NotAllowed(
                f"this process is in lease {lease.id} of {lease.holder.kind}:{lease.holder.id}, and an engine"
                " starts its containers outside of that: one would have more than the lease, and outlive it."
                " Run the command without a container, or take the container's lease from outside"
            )
