"""The gate: device nodes are closed to users without a lease there. An ACL tells uids apart, not leases."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from nodeagent.adapters.acl import READ_WRITE, Acl, DeviceNode
from nodeagent.adapters.bounded import Bounded
from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.fdinfo import DRM_MAJOR
from nodeagent.adapters.gate_record import GateRecord
from nodeagent.adapters.openers import users_of
from nodeagent.adapters.processes import pidfd_open, send_signal, uids_of
from nodeagent.adapters.sysfs import SysTree, Unread
from nodeagent.domain.clock import Clock
from nodeagent.domain.device import Device, DeviceState, Inventory
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.guarantee import Hold, Visibility
from nodeagent.domain.lease import LeaseState
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.effects import Arguments, Evidence, Pending, Planned
from nodeagent.service.means import Setting
from nodeagent.service.orders import Tier
from nodeagent.service.owners import owners
from nodeagent.service.survey import Survey

log = structlog.get_logger()

GATE = "gate"
# Accounts of services (login.defs): somebody may have sent them the descriptor, and the node needs them.
FIRST_USER = 1000
LOOK_SECONDS = 5.0  # a user can make who reads its process's mappings wait (Linux before 6.17)
OPENING = frozenset({LeaseState.PREPARING, LeaseState.ACTIVE})


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """The site's settings."""

    enabled: bool = False
    exempt: frozenset[int] = frozenset()
    kill: bool = False  # programs outside leases that have a node open from before


class Gate:
    """Computes each node's ACL from the ledger, compares, and writes: again and again is harmless.

    *tree* is the node's file tree; the device nodes are below its root in ``dev``. What was there before
    is kept in *state*: see `GateRecord`.
    """

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        survey: Survey,
        cgroups: CgroupTree | None,
        tree: SysTree,
        state: Path,
        policy: GatePolicy,
        display: Callable[[str], str | None] = lambda pci: None,
        opened: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._survey = survey
        self._cgroups = cgroups
        self._tree = tree
        self._record = GateRecord(state, clock.boot_id)
        self._policy = policy
        self._display = display
        self._opened = opened  # why the nodes are to be open now
        self._lock = threading.Lock()
        self._bounded = Bounded[tuple[int, ...]](LOOK_SECONDS)

    def unavailable(self) -> str | None:
        """Why no lease can be held by it, or None."""
        if not self._policy.enabled:
            return "turned off by devices.gate"
        if opened := self._opened():
            return opened
        try:
            self.kfd().read()
        except OutsideFault as fault:
            return str(fault)
        return None

    def look(self) -> None:
        """Put every node into the state that the ledger calls for; off, put back what was there before."""
        with self._lock:
            if not self._policy.enabled or self._opened() is not None:
                self._record.restore()
                return
            inventory, holders = self._survey.found(), self._holders()
            everyone = frozenset(uid for uids in holders.values() for uid in uids)
            self._settle(self.kfd(), everyone, keep=False)
            for device in inventory.devices:
                node = self.node_of(device)
                if node is not None and device.state is not DeviceState.GONE:
                    keep = self._display(device.pci) is not None
                    self._settle(node, holders.get(device.key, frozenset()), keep=keep)

    def kfd(self) -> DeviceNode:
        """/dev/kfd; raises OutsideFault on a node without KFD."""
        number = self._tree.text("sys/class/kfd/kfd/dev")
        major, _, minor = (number if isinstance(number, str) else "").partition(":")
        if isinstance(number, Unread) or not (major.isdecimal() and minor.isdecimal()):
            raise OutsideFault("/sys/class/kfd/kfd/dev", "tells no device number: is amdgpu loaded?")
        return DeviceNode(self._tree.root / "dev/kfd", int(major), int(minor))

    def node_of(self, device: Device) -> DeviceNode | None:
        if device.render_node is None or device.render_minor is None:
            return None
        return DeviceNode(self._tree.root / "dev/dri" / device.render_node, DRM_MAJOR, device.render_minor)

    def _holders(self) -> dict[str, frozenset[int]]:
        """The uids that have a live lease, by device."""
        holders: dict[str, frozenset[int]] = {}
        for lease in self._ledger.live():
            for held in lease.slices if lease.state in OPENING else ():
                key = held.placed.device
                holders[key] = holders.get(key, frozenset()) | {lease.holder.uid}
        return holders

    def _settle(self, node: DeviceNode, holders: frozenset[int], *, keep: bool) -> None:
        """*keep*: the node drives a display, so users that logind let in stay: all that the gate did not."""
        current = node.read()
        mine = self._record.remembered(node, current)
        seats = {uid: allowed for uid, allowed in current.users.items() if keep and uid not in mine}
        uids = {*holders, *self._policy.exempt} - {0}
        users = {**seats, **dict.fromkeys(uids, READ_WRITE)}
        wanted = Acl(READ_WRITE, 0, 0, READ_WRITE if users else None, users)
        if current == wanted:
            return
        anybody = bool(current.other or current.group or current.groups)
        if anybody or current.users.keys() - users.keys():
            self._leftovers(node, None if anybody else frozenset(current.users), frozenset(users))
        # Before the act, so that a crash in between leaves none behind.
        self._record.keep(node, mine | (uids - seats.keys()))
        node.write(wanted)

    def _leftovers(self, node: DeviceNode, before: frozenset[int] | None, allowed: frozenset[int]) -> None:
        """Threat 21: who opened the node while it was open keeps it. Told; ended if the site says so.

        *before*: the uids that it was open to; None: all. Others have it from one of them, and did nothing.
        """
        pids = self._bounded.call(lambda: users_of(node))
        if pids is None:
            log.error(
                "who has a node open was not found out: some process holds up who looks", node=node.path
            )
            return
        whose = owners(self._ledger, self._cgroups, self._clock)
        for pid in pids:
            pidfd = pidfd_open(pid)
            if pidfd is None:
                continue
            try:
                identity, uids = whose.of(pid), uids_of(pid)
                if identity is None or identity.owner is not None or not uids or uids[0] in {0, *allowed}:
                    continue
                if before is not None and uids[0] not in before:
                    continue
                kill = self._policy.kill and uids[0] >= FIRST_USER
                with self._ledger.write(release=True) as tx:
                    tx.event(
                        "gate_leftover",
                        uid=None,
                        reason=f"process {pid} of uid {uids[0]} has {node.path.name} open, in no lease",
                        data={"pid": pid, "uid": uids[0], "killed": kill},
                    )
                if kill:
                    send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)


class GateMeans:
    """Opens a lease's nodes to its holder. Nothing is held against root, or of what runs already."""

    at_best = Hold(visibility=Visibility.ACL)

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def tier(self) -> Tier:
        why = self._gate.unavailable()
        return Tier("gate", why is None, why or "device nodes are closed to users that hold no lease there")

    def promise(self, setting: Setting) -> Hold:
        return self.at_best if self._applies(setting) else Hold()

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        if not self._applies(setting):
            return []
        devices = sorted({one.device for one in setting.placed})
        return [Planned(GATE, {"uid": setting.uid, "devices": devices})]

    def _applies(self, setting: Setting) -> bool:
        nodes = all(_gated(setting.inventory, one.device) for one in setting.placed)
        return not setting.adopted and setting.uid != 0 and nodes and self._gate.unavailable() is None


class GateEffect:
    """The holder's entries in the ACLs of its nodes: not the lease's own, but all leases' of that uid."""

    def __init__(self, gate: Gate, survey: Survey) -> None:
        self._gate = gate
        self._survey = survey

    def apply(self, arguments: Arguments) -> Evidence:
        self._gate.look()
        return {}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        uid, found = int(arguments["uid"]), self._survey.found()
        devices = [found.device(key) for key in arguments["devices"]]
        nodes = [self._gate.node_of(device) for device in devices if device is not None]
        for node in (self._gate.kfd(), *nodes):
            acl = node.read() if node is not None else None
            if node is not None and acl is not None and (not acl.grants(uid) or acl.other or acl.group):
                raise OutsideFault(node.path, "its ACL is not what was written: udev or somebody reset it")
        return {"holds": {"visibility": Visibility.ACL}}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        self._gate.look()  # the lease is releasing by now, so it opens nothing any more
        return {"closed": "unless another lease of the uid is there"}


def _gated(inventory: Inventory, key: str) -> bool:
    device = inventory.device(key)
    return device is not None and device.render_node is not None
