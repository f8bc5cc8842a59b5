"""What is in the way of a slice that is not proved clean, for administrators, as it is quarantined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from nodeagent.adapters.acl import DeviceNode
from nodeagent.adapters.bounded import Bounded
from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.dmem import DmemController
from nodeagent.adapters.fdinfo import DRM_MAJOR
from nodeagent.adapters.openers import dma_buf_holders, users_of
from nodeagent.adapters.stuck import name_of, stuck
from nodeagent.domain.clock import Clock
from nodeagent.domain.device import Device
from nodeagent.domain.lease import Lease, SliceState
from nodeagent.domain.records import Json
from nodeagent.domain.watch import KfdUse
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.cgroup_effects import cgroup_in
from nodeagent.service.owners import Owners, owners
from nodeagent.service.survey import Survey

Facts = dict[str, Json]

LOOK_SECONDS = 5.0  # a user can make who looks at its processes wait, and cleaners are few
MOST = 64  # entries of one list: it is to be read by a person


class Obstacles:
    """Looks once at everything that may keep a lease's slices from being free. Changes nothing."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        survey: Survey,
        tree: CgroupTree | None,
        dmem: DmemController | None,
        kfd: Callable[[], Iterable[KfdUse]],
        used: Callable[[str], int | None],
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._survey = survey
        self._tree = tree
        self._dmem = dmem
        self._kfd = kfd
        self._used = used
        self._bounded = Bounded[Facts](LOOK_SECONDS)

    def gather(self, lease: Lease) -> Facts:
        """Processes of the lease's cgroup; who has its devices, or shared buffers, open; the counters."""
        found = self._bounded.call(lambda: self._look(lease))
        return {"unknown": "some process holds up who looks at it"} if found is None else found

    def _look(self, lease: Lease) -> Facts:
        whose = owners(self._ledger, self._tree, self._clock)
        held = [one.placed for one in lease.slices if one.state is not SliceState.FREE]
        devices = [device for one in held if (device := self._survey.found().device(one.device))]
        gpus = {one.gpu_id for one in devices if one.gpu_id}
        found = self._of_cgroup(lease.id)
        nodes = {node.path.name: node for one in devices if (node := _node(one))}
        users = {name: _named(users_of(node), whose) for name, node in sorted(nodes.items())}
        shared = _named(dma_buf_holders(), whose)
        if not (found.get("processes") or shared or any(users.values())):
            # Threat 17: what lies in a socket's queue is in no process's table, and keeps its memory.
            found["likely"] = "no process has it: the driver leaks, or a descriptor is in flight in a socket"
        return {
            **found,
            "render_nodes": users,
            "dma_bufs": shared,
            "kfd": [_row(one) for one in self._kfd() if one.gpu_id in gpus][:MOST],
            "vram_used_bytes": {one.pool: self._used(one.pool) for one in held},
        }

    def _of_cgroup(self, lease: int) -> Facts:
        ref = cgroup_in(self._ledger.effects(lease))
        if ref is None or self._tree is None:
            return {}
        try:
            with self._tree.open(ref) as cgroup:
                pids, events = cgroup.members(), cgroup.read("cgroup.events") or ""
        except FileNotFoundError:
            return {}
        charged = dict(self._dmem.current(ref)) if self._dmem else {}
        return {
            "processes": [asdict(one) for one in stuck(pids)][:MOST],
            "cgroup_events": events.split("\n")[:MOST],
            "dmem_current": {region: size for region, size in charged.items() if size},
        }


def _node(device: Device) -> DeviceNode | None:
    if device.render_node is None or device.render_minor is None:
        return None
    return DeviceNode(Path("/dev/dri") / device.render_node, DRM_MAJOR, device.render_minor)


def _row(one: KfdUse) -> Facts:
    return {"pid": one.pid, "gpu_id": one.gpu_id, "vram_bytes": one.vram_bytes, "queues": list(one.queues)}


def _named(pids: Iterable[int], whose: Owners) -> Sequence[Facts]:
    """Each with its name and the lease that it is in; None: in none."""
    known = [(pid, whose.of(pid)) for pid in pids]
    rows: list[Facts] = [
        {"pid": pid, "name": name_of(pid), "lease": one.owner} for pid, one in known if one is not None
    ]
    return rows[:MOST]
