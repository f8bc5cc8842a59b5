"""Launch: start the one command of a lease in its caller's name, as confined as its caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from nodeagent.adapters.attach import check_confinement, check_identity
from nodeagent.adapters.cgroup import CgroupTree, OpenCgroup
from nodeagent.adapters.hook_format import HookDevice
from nodeagent.adapters.inheritance import inherited_from
from nodeagent.adapters.peer import Peer
from nodeagent.adapters.supervisor import Launch, Offered, Supervisor
from nodeagent.domain.errors import NotAllowed, StaleLease
from nodeagent.domain.guarantee import Guarantee, Ipc, Memory
from nodeagent.domain.lease import Lease
from nodeagent.domain.records import EffectRecord
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.anchoring import Anchors
from nodeagent.service.attach import check_no_container, own_active
from nodeagent.service.cgroup_effects import cgroup_in
from nodeagent.service.changes import Changes
from nodeagent.service.charging import devices_of
from nodeagent.service.locks import LeaseLocks
from nodeagent.service.orders import Caller
from nodeagent.service.quotas import Quotas
from nodeagent.service.supervised import HOME, SUPERVISED


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
    """Starts commands of leases that are supervised or have private IPC, one of each lease."""

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
            NotAllowed: the lease is another's, takes its commands by attach or runs something already, or the
                caller is confined in a way that a launch would undo; or the command cannot be executed.
            InvalidField: *command* or *report* is not as `Offered` wants it.
            StaleLease, UnknownThing: there is no such lease any more, or never was.
            TooMany: the caller asks without end, and each time is written down.
        """
        self._quotas.take_call(caller)
        with self._locks.of(lease_id):
            lease = own_active(self._ledger, caller, lease_id)
            check_no_container(lease)
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
        ref, stated = cgroup_in(journal), lease.guarantee or Guarantee()
        if self._tree is None or self._supervisor is None or ref is None or not stated.for_one_command:
            raise NotAllowed(
                f"lease {lease.id} is neither supervised nor has private IPC: attach to it, or ask for one "
                "with require memory=supervised or ipc=private"
            )
        try:
            with self._tree.open(ref) as cgroup, self._tree.open(self._tree.scratch(HOME)) as supervisors:
                if cgroup.populated():
                    raise NotAllowed(f"lease {lease.id} has its command already, and takes no second")
                peer, pidfd = _checked(self._tree, cgroup, caller)
                return self._supervisor.launch(
                    Launch(
                        lease=lease.id,
                        devices=_held(stated, journal),
                        cgroup=cgroup.fileno(),
                        home=supervisors.fileno(),
                        peer=pidfd,
                        peer_pid=peer.pid,
                        offered=Offered(**asdict(order)),
                        uid=peer.uid,
                        gid=peer.gid,
                        groups=peer.groups,
                        inherited=inherited_from(peer, self._supervisor.world),
                        private_ipc=stated.ipc is Ipc.PRIVATE,
                    )
                )
        except FileNotFoundError:
            raise StaleLease(f"the cgroup of lease {lease.id} is gone") from None


def _checked(tree: CgroupTree, cgroup: OpenCgroup, caller: Caller) -> tuple[Peer, int]:
    """The process that asks and its pidfd, if a launch in its name takes it out of nothing."""
    peer = Peer(caller.pid, caller.uid, caller.gid, tuple(caller.groups), caller.pidfd)
    if peer.pidfd is None:
        raise NotAllowed("the process that asked has ended")
    check_identity(peer)
    check_confinement(tree, cgroup, tree.cgroup_of(peer.pid))
    return peer, peer.pidfd


def _held(stated: Guarantee, journal: Sequence[EffectRecord]) -> tuple[HookDevice, ...] | None:
    """What a supervisor is to hold; None where the lease is not stated supervised."""
    if stated.memory is not Memory.SUPERVISED:
        return None
    return next(tuple(devices_of(record.arguments)) for record in journal if record.kind == SUPERVISED)
