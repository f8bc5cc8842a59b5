"""Checks of the devices as ROCm sees them: all there, told apart, the same twice, and their nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.domain.device import Device, DeviceState, Inventory
from nodeagent.domain.doctor.check import Verdict, check, either, fail, ok, unseen, warn

AREA = "devices"
_WELL = (DeviceState.HEALTHY, DeviceState.EXCLUDED)
_PARTITIONS = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4}
_WORLD = 0o006


@dataclass(frozen=True, slots=True)
class NodeFile:
    """A device node: ``/dev/kfd``, ``/dev/dri/renderD128``. *expected*: its device number by sysfs."""

    path: str
    there: bool
    number: tuple[int, int] | None = None  # major, minor; None: no character device
    expected: tuple[int, int] | None = None
    mode: int = 0
    gid: int = 0
    acl_uids: tuple[int, ...] = ()  # users with an entry of their own


@dataclass(frozen=True, slots=True)
class Devices:
    """Two looks at the topology, a moment apart, and what DRM has for it.

    *render_nodes* are amdgpu's, with the PCI address that each hangs under (None: a partition's platform
    device); *located* is what KFD's location says of each render node.
    """

    first: Inventory
    second: Inventory
    render_nodes: Mapping[str, str | None] = field(default_factory=dict)
    located: Mapping[str, str] = field(default_factory=dict)
    files: tuple[NodeFile, ...] = ()
    groups: Mapping[str, int] = field(default_factory=dict)  # gid of render and video, where they exist
    include_apus: bool = False

    @property
    def used(self) -> tuple[Device, ...]:
        return tuple(one for one in self.first.devices if one.state is not DeviceState.EXCLUDED)


def _none(devices: Devices) -> str | None:
    return None if devices.first.devices else "there is no device"


@check(
    Devices,
    AREA,
    fix="load amdgpu and look at dmesg; in a container or service hand over /sys and the devices",
    issue="ROCm/k8s-device-plugin#184",
)
def devices_found(devices: Devices) -> Verdict:
    """There is a device to share, and every device that KFD lists can be used."""
    if not devices.first.devices:
        return fail("no AMD GPU in /sys/class/kfd/kfd/topology")
    bad = [f"{one.key}: {one.reason}" for one in devices.first.devices if one.state not in _WELL]
    return either(bad, fail, f"{len(devices.used)} devices")


@check(
    Devices,
    AREA,
    fix="run the agent outside containers, without DevicePolicy=closed, or with DeviceAllow=char-drm",
    issue="NVIDIA/gpu-operator#485",
)
def devices_masked(devices: Devices) -> Verdict:
    """No GPU is hidden from this process by a device cgroup, or unreadable."""
    return either(
        [f"KFD node {one.kfd_node}: {one.reason}" for one in devices.first.skipped], warn, "none is"
    )


@check(
    Devices,
    AREA,
    fix="drain the device, then reload amdgpu or reboot: programs would meet another GPU than theirs",
    issue="ROCm/k8s-device-plugin#157",
    without=_none,
)
def device_mapping(devices: Devices) -> Verdict:
    """KFD, DRM and PCI agree which render node is which card."""
    known = devices.render_nodes
    nodes = {one.render_node for one in devices.first.devices if one.render_node}
    lost = [f"{name}: KFD names it, DRM has none" for name in sorted(nodes - known.keys())]
    stray = [
        f"{name}: DRM has it at {pci}, KFD does not"
        for name, pci in sorted(known.items())
        if pci is not None and name not in nodes
    ]
    moved = [
        f"{name}: at {pci} by DRM, at {devices.located[name]} by KFD"
        for name, pci in sorted(known.items())
        if pci is not None and name in devices.located and devices.located[name] != pci
    ]
    without = [f"{one.key}: no render node" for one in devices.first.devices if not one.render_node]
    if devices.first.skipped and not (lost or moved or without):
        return unseen("some GPUs are hidden from this process") if stray else ok("they agree on the rest")
    return either([*lost, *moved, *without, *stray], fail, f"{len(nodes)} render nodes")


@check(
    Devices,
    AREA,
    fix="address such devices by PCI address and partition, never by UUID; upgrade the driver",
    issue="ROCm/rocm-systems#3977",
    without=_none,
)
def device_names(devices: Devices) -> Verdict:
    """Each device has a UUID that no other has, so that a program can be given just that one."""
    without = [f"{one.key} has none" for one in devices.used if one.uuid is None]
    if without and len(devices.used) > 1:
        return either(without, warn, "")
    return ok(f"{len(devices.used)} devices")


@check(
    Devices,
    AREA,
    fix="drain the device, set the mode again (amd-smi set --compute-partition), else reboot the node",
    issue="ROCm/legacy-rocm-build#4688",
    without=_none,
)
def partitions_stable(devices: Devices) -> Verdict:
    """Partition modes and devices are the same when they are read twice."""
    before, after = (
        {one.key: (one.compute_partition, one.memory_partition, one.render_node) for one in look.devices}
        for look in (devices.first, devices.second)
    )
    changed = [
        f"{key}: {before.get(key)}, then {after.get(key)}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    if changed:
        return either(changed, fail, "")
    if devices.first.generation != devices.second.generation:
        return warn("the topology changed between two looks")
    return ok("the same twice")


@check(
    Devices,
    AREA,
    fix="set the mode again with nothing on the card; 64 devices a node is KFD's most: use fewer partitions",
    issue="ROCm/k8s-device-plugin#167",
    without=_none,
)
def partitions_complete(devices: Devices) -> Verdict:
    """A card shows as many devices as its partition mode makes of it."""
    counts = Counter(one.pci for one in devices.first.devices if one.pci)
    modes = {one.pci: one.compute_partition for one in devices.first.devices if one.pci}
    offenders = [
        f"{pci}: {counts[pci]} devices in mode {mode}"
        for pci, mode in sorted(modes.items())
        if mode in _PARTITIONS and counts[pci] != _PARTITIONS[mode]
    ]
    full = max((counts[pci] for pci, mode in modes.items() if mode == "CPX"), default=0)
    offenders += [
        f"{pci}: {counts[pci]} devices in mode CPX, others have {full}"
        for pci, mode in sorted(modes.items())
        if mode == "CPX" and counts[pci] != full
    ]
    return either(offenders, warn, "all are there")


@check(
    Devices,
    AREA,
    fix="set all cards to one mode, or ask for devices by --type: sizes in percent mean different amounts",
    issue="ROCm/gpu-operator#382",
    without=_none,
)
def partitions_alike(devices: Devices) -> Verdict:
    """All cards of one product are in the same partition mode."""
    modes: dict[str, set[str]] = {}
    for one in devices.used:
        modes.setdefault(one.product, set()).add(f"{one.compute_partition}/{one.memory_partition}")
    mixed = [f"{product}: {', '.join(sorted(found))}" for product, found in modes.items() if len(found) > 1]
    return either(mixed, warn, "they are")


@check(
    Devices,
    AREA,
    fix="set devices.include_apus = false, unless jobs are meant to run on the processor's own graphics",
    issue="ROCm/TheRock#3392",
    without=_none,
)
def integrated_gpu(devices: Devices) -> Verdict:
    """The graphics of a processor are not leased beside discrete cards."""
    left_out = [one.key for one in devices.first.devices if one.state is DeviceState.EXCLUDED]
    if left_out:
        return ok(f"{', '.join(left_out)} left out")
    if devices.include_apus and len(devices.used) > 1:
        return warn("devices.include_apus is set: a job may land on the processor's graphics")
    return ok("none beside discrete cards")


@check(
    Devices,
    AREA,
    fix="lease such devices to few at a time (--queues 1), or whole: too many queues slow everybody",
    issue="ROCm/legacy-rocm-build#6012",
    without=_none,
)
def queue_slots(devices: Devices) -> Verdict:
    """Each device has compute queues for several programs at once."""
    few = [f"{one.key}: {one.queue_slots}" for one in devices.used if one.queue_slots < 8]
    least = min((one.queue_slots for one in devices.used), default=0)
    return either(few, warn, f"at least {least} a device")


@check(
    Devices,
    AREA,
    fix="let udev make them (systemctl restart systemd-udevd, udevadm trigger), or load amdgpu again",
    issue="ROCm/legacy-rocm-build#4469",
)
def device_nodes(devices: Devices) -> Verdict:
    """/dev/kfd and each render node are there, and are the devices that they should be."""
    lost = [f"{one.path}: is missing" for one in devices.files if not one.there]
    wrong = [
        f"{one.path}: is {one.number or 'no character device'}"
        + (f", not {one.expected}" if one.number else "")
        for one in devices.files
        if one.there and (one.number is None or one.expected not in (None, one.number))
    ]
    return either([*lost, *wrong], fail, f"{len(devices.files)} nodes")


@check(
    Devices,
    AREA,
    fix='set mode 0660 and group render by a udev rule: KERNEL=="kfd", GROUP="render", MODE="0660"',
    issue="ROCm/ROCm-docker#90",
    without=_none,
)
def device_permissions(devices: Devices) -> Verdict:
    """Device nodes are open to a group, and not to everybody."""
    opened = [f"{one.path}: mode {one.mode:o}" for one in devices.files if one.there and one.mode & _WORLD]
    closed = [
        f"{one.path}: mode {one.mode:o}, so root alone has it"
        for one in devices.files
        if one.there and not one.mode & 0o060 and not one.acl_uids
    ]
    return either([*closed, *opened], warn, "a group's")


@check(
    Devices,
    AREA,
    fix="groupadd --system render, udevadm trigger; hand containers the number (--group-add), not the name",
    issue="ROCm/ROCm-docker#116",
)
def device_groups(devices: Devices) -> Verdict:
    """/dev/kfd and the render nodes belong to one group, which exists on this node."""
    there = [one for one in devices.files if one.there]
    if not there:
        return unseen("no device nodes to look at")
    gids = Counter(one.gid for one in there)
    if len(gids) > 1:
        return warn("several: " + ", ".join(f"{one.path} gid {one.gid}" for one in there[:4]))
    (gid,) = gids
    if gid == 0:
        return warn("group root: users cannot be let in by a group")
    names = [name for name, number in devices.groups.items() if number == gid]
    return ok(f"gid {gid} ({names[0]})") if names else warn(f"gid {gid} is neither render nor video here")


CHECKS = (
    devices_found,
    devices_masked,
    device_mapping,
    device_names,
    partitions_stable,
    partitions_complete,
    partitions_alike,
    integrated_gpu,
    queue_slots,
    device_nodes,
    device_permissions,
    device_groups,
)
