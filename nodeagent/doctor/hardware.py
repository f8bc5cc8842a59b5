"""Gathers what the checks of driver, cards and devices judge."""

from __future__ import annotations

import grp
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from nodeagent.adapters import drm, kfd, vitals
from nodeagent.adapters.acl import DeviceNode
from nodeagent.adapters.coredumps import dumps
from nodeagent.adapters.discovery import APU_TARGETS
from nodeagent.adapters.drm import DRM, PCI
from nodeagent.adapters.fdinfo import DRM_MAJOR
from nodeagent.adapters.identity import located
from nodeagent.adapters.sysfs import Unread
from nodeagent.doctor.pci import redirects
from nodeagent.doctor.scene import Scene
from nodeagent.domain.doctor.cards import Card, Cards
from nodeagent.domain.doctor.devices import Devices, NodeFile
from nodeagent.domain.doctor.driver import Driver
from nodeagent.domain.errors import OutsideFault

MODULE = "sys/module/amdgpu"
ASLEEP = ("suspended", "suspending")
_AMD = 0x1002
_BETWEEN_LOOKS = 0.1  # seconds; a mode that flickers does so at each read
_GROUPS = ("render", "video")


def driver(scene: Scene) -> Driver:
    """The kernel, amdgpu's parameters, ROCm in /opt, and what the node's memory is like."""
    parameters = {
        name: scene.text(f"{MODULE}/parameters/{name}") for name in scene.names(f"{MODULE}/parameters")
    }
    devices = [one for one in scene.inventory.devices if one.gfx not in APU_TARGETS]
    gtt = [scene.number(f"{PCI}/{pci}/mem_info_gtt_total") or 0 for pci in _addresses(scene)]
    return Driver(
        release=scene.text("proc/sys/kernel/osrelease") or "unknown",
        loaded=scene.tree.exists(MODULE),
        kfd=scene.tree.exists("sys/class/kfd/kfd"),
        version=scene.text(f"{MODULE}/version"),
        rocm=_rocm(scene),
        parameters={name: value for name, value in parameters.items() if value is not None},
        gfx=tuple(one.gfx for one in devices if one.gfx),
        queues=tuple(one.queue_slots for one in devices if one.queue_slots),
        numa_nodes=_numa_nodes(scene),
        numa_balancing=scene.number("proc/sys/kernel/numa_balancing"),
        overcommit=scene.number("proc/sys/vm/overcommit_memory"),
        memory_bytes=_memory(scene),
        gtt_bytes=max(gtt, default=0),
        events=scene.events(),
    )


def cards(scene: Scene) -> Cards:
    """Every card's PCI device. One in runtime suspend is asked nothing that would wake it."""
    gfx = {one.pci: one.gfx for one in scene.inventory.devices}
    return Cards(
        tuple(_card(scene, pci, gfx.get(pci)) for pci in _addresses(scene)),
        _numa_nodes(scene),
        tuple(sorted(dumps(scene.tree).values())),
    )


def devices(scene: Scene) -> Devices:
    """The devices twice, DRM's view of them, and their nodes in /dev, which are never opened."""
    first = scene.inventory
    time.sleep(_BETWEEN_LOOKS)
    return Devices(
        first=first,
        second=scene.scan(),
        render_nodes=dict(_render_nodes(scene)),
        located=_located(scene),
        files=tuple(device_files(scene)),
        groups=dict(_gids()),
        include_apus=scene.config.devices.include_apus,
    )


def _addresses(scene: Scene) -> list[str]:
    return sorted({one.pci for one in scene.inventory.devices if one.pci})


def _card(scene: Scene, pci: str, gfx: str | None) -> Card:
    where = f"{PCI}/{pci}"
    path = vitals.path(scene.tree, pci)
    asleep = scene.text(f"{where}/power/runtime_status") in ASLEEP
    bare = Card(
        pci=pci,
        gfx=gfx,
        apu=gfx in APU_TARGETS,
        asleep=asleep,
        # Kept by the driver and the kernel: to be read without the card.
        vram_bytes=scene.number(f"{where}/mem_info_vram_total"),
        visible_bytes=scene.number(f"{where}/mem_info_vis_vram_total"),
        numa_node=_numa_node(scene, where),
        iommu=scene.text(f"{where}/iommu_group/type"),
    )
    return bare if asleep else _awake(scene, bare, path)


def _awake(scene: Scene, card: Card, path: list[str]) -> Card:
    """What a card says that is awake. Links and errors are read at each bridge on the way, too."""
    where = f"{PCI}/{card.pci}"
    return Card(
        pci=card.pci,
        gfx=card.gfx,
        apu=card.apu,
        # The lower end of each link: the card, then the upper port of each switch.
        links=tuple(vitals.link_end(scene.tree, address) for address in path[::2]),
        corrected=_errors(scene, path, "correctable", "COR"),
        nonfatal=_errors(scene, path, "nonfatal", "NONFATAL"),
        fatal=_errors(scene, path, "fatal", "FATAL"),
        replays=scene.number(f"{where}/pcie_replay_count"),
        ras=dict(vitals.ras_counts(scene.tree, card.pci)),
        bad_pages=len((scene.text(f"{where}/ras/gpu_vram_bad_pages") or "").splitlines()),
        vram_bytes=card.vram_bytes,
        visible_bytes=card.visible_bytes,
        numa_node=card.numa_node,
        iommu=card.iommu,
        acs=_acs(scene, path[1:]),
    )


def _errors(scene: Scene, path: list[str], kind: str, total: str) -> int | None:
    """AER's total of the card and the bridges above it; None where the kernel counts none."""
    totals = []
    for address in path:
        text = scene.text(f"{PCI}/{address}/aer_dev_{kind}") or ""
        totals += [
            int(found) for found in re.findall(rf"^TOTAL_ERR_{total} ([0-9]{{1,19}})$", text, re.MULTILINE)
        ]
    return sum(totals) if totals else None


def _acs(scene: Scene, bridges: list[str]) -> Mapping[str, int] | None:
    """What each bridge does with its devices' traffic to each other; None where only root may read it."""
    found: dict[str, int] = {}
    for address in bridges:
        config = scene.tree.content(f"{PCI}/{address}/config")
        if isinstance(config, Unread):
            continue
        bits = redirects(config)
        if bits is None:
            return None
        found[address] = bits
    return found


def _render_nodes(scene: Scene) -> Iterator[tuple[str, str | None]]:
    for name in scene.names(DRM):
        if not re.fullmatch(r"renderD[0-9]{1,9}", name):
            continue
        if (scene.tree.link(f"{DRM}/{name}/device") or "").rpartition("/")[2].startswith("amdgpu_xcp"):
            yield name, None
        elif scene.tree.hexadecimal(f"{DRM}/{name}/device/vendor") == _AMD:
            yield name, drm.pci_address(scene.tree, name)


def _located(scene: Scene) -> dict[str, str]:
    gpus = [node for node in kfd.nodes(scene.tree) if node.is_gpu and not node.masked]
    places = located(gpus)
    return {
        node.render_node: places[node.number][0]
        for node in gpus
        if node.render_node and node.number in places
    }


def device_files(scene: Scene) -> Iterator[NodeFile]:
    """/dev/kfd and the render node of each device, by name alone."""
    found = scene.inventory.devices
    yield _file(scene, "/dev/kfd", _number(scene, "sys/class/kfd/kfd/dev"))
    for name in sorted({one.render_node for one in found if one.render_node}):
        expected = _number(scene, f"{DRM}/{name}/dev") or (DRM_MAJOR, int(name.removeprefix("renderD")))
        yield _file(scene, f"/dev/dri/{name}", expected)


def _file(scene: Scene, path: str, expected: tuple[int, int] | None) -> NodeFile:
    try:
        status = scene.at(path).stat()
    except OSError:
        return NodeFile(path, False, expected=expected)
    number = (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else None
    users = _acl_users(scene.at(path), number) if number else ()
    return NodeFile(path, True, number, expected, stat.S_IMODE(status.st_mode), status.st_gid, users)


def _acl_users(path: Path, number: tuple[int, int]) -> tuple[int, ...]:
    try:
        return tuple(sorted(DeviceNode(path, *number).read().users))
    except OutsideFault:
        return ()


def _number(scene: Scene, path: str) -> tuple[int, int] | None:
    """A file that holds ``major:minor``."""
    found = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", scene.text(path) or "")
    return (int(found[1]), int(found[2])) if found else None


def _gids() -> Iterator[tuple[str, int]]:
    for name in _GROUPS:
        try:
            yield name, grp.getgrnam(name).gr_gid
        except KeyError:
            continue


def _numa_node(scene: Scene, where: str) -> int | None:
    number = scene.number(f"{where}/numa_node")
    return number if number is not None and number >= 0 else None


def _numa_nodes(scene: Scene) -> int:
    return (
        sum(bool(re.fullmatch(r"node[0-9]+", name)) for name in scene.names("sys/devices/system/node")) or 1
    )


def _memory(scene: Scene) -> int:
    found = re.search(r"^MemTotal: +([0-9]{1,15}) kB$", scene.text("proc/meminfo") or "", re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def _rocm(scene: Scene) -> str | None:
    """The newest ROCm in /opt: its own word, `/opt/rocm*/.info/version`, as "7.2.1"."""
    named = (f"opt/{name}/.info/version" for name in scene.names("opt") if name.startswith("rocm"))
    versions = [
        found[0] for path in named if (found := re.match(r"[0-9]+(\.[0-9]+)+", scene.text(path) or ""))
    ]
    return max(versions, key=lambda version: [int(part) for part in version.split(".")], default=None)
