"""Launch: start the command of a supervised lease in its caller's name, as confined as its caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nodeagent.adapters.attach import check_confinement, check_identity
from nodeagent.adapters.cgroup import CgroupTree, OpenCgroup
from nodeagent.adapters.inheritance import inherited_from
from nodeagent.adapters.peer import Peer
from nodeagent.adapters.supervisor import Launch, Offered, Supervisor
from nodeagent.domain.errors import NotAllowed, StaleLease
from nodeagent.domain.guarantee import Memory
from nodeagent.domain.lease import Lease
from nodeagent.domain.records import EffectRecord
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.anchoring import Anchors
from nodeagent.service.attach import own_active
from nodeagent.service.cgroup_effects import cgroup_in
from nodeagent.service.changes import Changes
from nodeagent.service.charging import devices_of
from nodeagent.service.locks import LeaseLocks
from nodeagent.service.orders import Caller
from nodeagent.service.quotas import Quotas
from nodeagent.service.supervised import SUPERVISED

HOME = "supervisor"  # the cgroup of all supervisors: not the agent's, whose end they survive


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """Numbers of the caller's own descriptors: see `Offered`."""

    command: int
    stdin: int
    stdout: int
    stderr: int
    cwd: int
    report: int


class Launcher:
    """Starts commands of supervised leases, one of each lease."""

    def __init__(
        self,
        ledger: Ledger,
        tree: CgroupTree | None,
        supervisor: Supervisor | None,
        anchors: Anchors,
        quotas: Quotas,
        locks: LeaseLocks,
        changes: Changes,
        entered: Callable[[int, int], None] = lambda lease, pid: None,
        keep: Callable[[int], None] = lambda lease: None,
    ) -> None:
        self._ledger = ledger
        self._tree = tree
        self._supervisor = supervisor
        self._anchors = anchors
        self._quotas = quotas
        self._locks = locks
        self._changes = changes
        self._entered = entered
        self._keep = keep  # told of each lease that is another now, before the answer

    def launch(self, caller: Caller, lease_id: int, order: LaunchOrder) -> int:
        """Start the command in the lease; its pid once its own code runs.

        Raises:
            NotAllowed: the lease is another's, is not supervised or runs something already, or the caller is
                confined in a way that a launch would undo; also where the command cannot be executed.
            InvalidField: *command* or *report* is not as `Offered` wants it.
            StaleLease, UnknownThing: there is no such lease any more, or never was.
            TooMany: the caller asks without end, and each time is written down.
        """
        self._quotas.take_call(caller)
        with self._locks.of(lease_id):
            lease = own_active(self._ledger, caller, lease_id)
            pid = self._start(caller, lease, order)
            self._entered(lease_id, pid)
            with self._ledger.write(release=True) as tx:
                if not lease.anchor.armed:
                    tx.set_anchor(lease_id, self._anchors.armed(lease.anchor))
                tx.event("launched", uid=caller.uid, lease=lease_id, data={"pid": pid})
        self._keep(lease_id)
        self._changes.announce(lease_id)
        return pid

    def _start(self, caller: Caller, lease: Lease, order: LaunchOrder) -> int:
        journal = self._ledger.effects(lease.id)
        planned = next((record for record in journal if record.kind == SUPERVISED), None)
        if self._tree is None or self._supervisor is None or planned is None:
            raise NotAllowed(f"lease {lease.id} is not supervised: ask for it with require memory=supervised")
        ref = cgroup_in(journal)
        if ref is None or lease.guarantee is None or lease.guarantee.memory is not Memory.SUPERVISED:
            raise NotAllowed(f"lease {lease.id} is not stated supervised")
        try:
            with self._tree.open(ref) as cgroup, self._tree.open(self._tree.scratch(HOME)) as supervisors:
                if cgroup.populated():
                    raise NotAllowed(f"lease {lease.id} has its command already, and takes no second")
                return self._supervised(
                    self._supervisor, self._tree, caller, planned, order, cgroup, supervisors.fileno()
                )
        except FileNotFoundError:
            raise StaleLease(f"the cgroup of lease {lease.id} is gone") from None

    def _supervised(
        self,
        supervisor: Supervisor,
        tree: CgroupTree,
        caller: Caller,
        planned: EffectRecord,
        order: LaunchOrder,
        cgroup: OpenCgroup,
        home: int,
    ) -> int:
        peer = Peer(caller.pid, caller.uid, caller.gid, tuple(caller.groups), caller.pidfd)
        if peer.pidfd is None:
            raise NotAllowed("the process that asked has ended")
        check_identity(peer)
        check_confinement(tree, cgroup, tree.cgroup_of(peer.pid))
        return supervisor.launch(
            Launch(
                lease=int(str(planned.arguments["lease"])),
                devices=tuple(devices_of(planned.arguments)),
                cgroup=cgroup.fileno(),
                home=home,
                peer=peer.pidfd,
                peer_pid=peer.pid,
                offered=Offered(
                    command=order.command,
                    stdin=order.stdin,
                    stdout=order.stdout,
                    stderr=order.stderr,
                    cwd=order.cwd,
                    report=order.report,
                ),
                uid=peer.uid,
                gid=peer.gid,
                groups=peer.groups,
                inherited=inherited_from(peer),
            )
        )
