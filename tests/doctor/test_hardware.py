"""What the doctor gathers of driver, cards and devices, from trees of files."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.sysfs import SysTree
from nodeagent.doctor import hardware
from nodeagent.doctor.pci import redirects
from nodeagent.domain.doctor.cards import LinkEnd

PCI = "sys/bus/pci/devices"
MODULE = "sys/module/amdgpu"
ROOT_PORT, UP, DOWN = "0000:00:01.1", "0000:f1:00.0", "0000:f2:00.0"


def space(*capabilities: tuple[int, int, int]) -> bytes:
    """A configuration space with these extended capabilities: id, offset, word at offset 6."""
    config = bytearray(4096)
    for index, (identity, at, word) in enumerate(capabilities):
        following = capabilities[index + 1][1] if index + 1 < len(capabilities) else 0
        struct.pack_into("<IHH", config, at, identity | 1 << 16 | following << 20, 0, word)
    return bytes(config)


@pytest.mark.parametrize(
    ("config", "bits"),
    [
        (space((0x01, 0x100, 0), (0x0D, 0x150, 0x1D)), 0x1D),
        (space((0x01, 0x100, 0)), 0),
        (space((0x01, 0x100, 0))[:64], None),
        (b"", None),
        (bytes(0x100) + struct.pack("<I", 0x01 | 0x100 << 20) + bytes(64), 0),
        (bytes(0x100) + struct.pack("<I", 0x0D), 0),
    ],
    ids=["acs", "none", "user", "empty", "loop", "cut"],
)
def test_a_bridges_redirects(config: bytes, bits: int | None) -> None:
    """ACS bits are found in a list of capabilities that may loop or be cut; a user's 64 bytes say nothing."""
    assert redirects(config) == bits


def test_the_driver_of_a_node(node: Any) -> None:
    """Module, parameters, ROCm and memory are read; what is no number stays text."""
    node.is_a("r9700")
    node.write(f"{MODULE}/version", "6.16.13\n")
    node.write(f"{MODULE}/parameters/num_kcq", "-1\n")
    node.write(f"{MODULE}/parameters/no_system_mem_limit", "N\n")
    node.write("proc/sys/vm/overcommit_memory", "2\n")
    node.write("proc/sys/kernel/osrelease", "6.14.0-amd\n")
    node.write("proc/meminfo", "MemTotal:       1048576 kB\n")
    node.write("opt/rocm-6.4.1/.info/version", "6.4.1-83\n")
    node.write("opt/rocm-7.10.0/.info/version", "7.10.0\n")
    for number in (0, 1):
        (node.root / f"sys/devices/system/node/node{number}").mkdir(parents=True)
    found = hardware.driver(node.scene(events=lambda: "no"))
    assert (found.loaded, found.version, found.rocm, found.release) == (
        True,
        "6.16.13",
        "7.10.0",
        "6.14.0-amd",
    )
    assert (found.number("num_kcq"), found.number("no_system_mem_limit")) == (-1, None)
    assert (found.overcommit, found.memory_bytes, found.numa_nodes, found.events) == (2, 1 << 30, 2, "no")
    assert found.gfx and set(found.gfx) == {"gfx1201"} and found.queues


def a_card(node: Any) -> str:
    """An MI210's first card below a switch, with all that a card may say."""
    node.is_a("mi210")
    pci = min(one.pci for one in node.scene().inventory.devices)
    node.upstream(pci, ROOT_PORT, UP, DOWN)
    for address, width in ((pci, "16"), (UP, "8"), (ROOT_PORT, "16")):
        node.write(f"{PCI}/{address}/current_link_width", width)
        node.write(f"{PCI}/{address}/max_link_width", "16")
        node.write(f"{PCI}/{address}/current_link_speed", "16.0 GT/s PCIe")
        node.write(f"{PCI}/{address}/max_link_speed", "32.0 GT/s PCIe")
        node.write(f"{PCI}/{address}/aer_dev_correctable", "RxErr 2\nTOTAL_ERR_COR 2\n")
        node.write(f"{PCI}/{address}/aer_dev_fatal", "TOTAL_ERR_FATAL 0\n")
    node.write(f"{PCI}/{DOWN}/config", space((0x0D, 0x100, 0x1D)))
    node.write(f"{PCI}/{pci}/pcie_replay_count", "4")
    node.write(f"{PCI}/{pci}/ras/umc_err_count", "ue: 1\nce: 22\n")
    node.write(f"{PCI}/{pci}/ras/features", "feature mask: 0x1\n")
    node.write(f"{PCI}/{pci}/ras/gpu_vram_bad_pages", "0x01 : 0x1000 : R\n0x02 : 0x1000 : P\n")
    node.write(f"{PCI}/{pci}/iommu_group/type", "DMA-FQ\n")
    return str(pci)


def test_a_card_and_its_way(node: Any) -> None:
    """Links are read at their lower ends, errors along the way, redirects at the bridges."""
    pci = a_card(node)
    (card,) = (one for one in hardware.cards(node.scene()).cards if one.pci == pci)
    assert card.links == (LinkEnd(pci, 16, 16, 16.0, 32.0), LinkEnd(UP, 8, 16, 16.0, 32.0))
    assert (card.corrected, card.fatal, card.nonfatal, card.replays) == (6, 0, None, 4)
    assert (card.ras, card.bad_pages, card.iommu) == ({"umc": (1, 22)}, 2, "DMA-FQ")
    assert card.acs == {DOWN: 0x1D}


def test_a_card_that_sleeps_is_let_sleep(node: Any) -> None:
    """Of a card in runtime suspend only files are read that the kernel answers without it."""
    pci = a_card(node)
    node.write(f"{PCI}/{pci}/power/runtime_status", "suspended\n")
    read: list[str] = []

    class Spy(SysTree):
        def read_bytes(self, path: str) -> bytes:
            read.append(path)
            return super().read_bytes(path)

    scene = node.scene()
    assert scene.inventory.devices
    scene.__dict__["tree"] = Spy(node.root)
    (card,) = (one for one in hardware.cards(scene).cards if one.pci == pci)
    assert card.asleep and card.vram_bytes and card.iommu == "DMA-FQ"
    of_card = {path.removeprefix(f"{PCI}/{pci}/") for path in read if f"/{pci}/" in path}
    quiet = {"power/runtime_status", "mem_info_vram_total", "mem_info_vis_vram_total", "numa_node"}
    assert of_card <= quiet | {"iommu_group/type"}
    assert not [path for path in read if any(f"/{bridge}/" in path for bridge in (DOWN, UP, ROOT_PORT))]


def test_devices_and_their_nodes(node: Any) -> None:
    """Two looks, DRM's render nodes with their cards, and the device nodes as they are."""
    node.is_a("mi210")
    node.write("dev/dri/renderD128", "")
    found = hardware.devices(node.scene())
    assert found.first == found.second and len(found.first.devices) == 8
    assert found.render_nodes == {one.render_node: one.pci for one in found.first.devices}
    assert found.located == found.render_nodes
    files = {one.path: one for one in found.files}
    assert not files["/dev/kfd"].there
    assert files["/dev/dri/renderD128"].there and files["/dev/dri/renderD128"].number is None
    assert files["/dev/dri/renderD129"].expected == (226, 129)


def test_partitions_have_no_card_of_their_own(node: Any) -> None:
    """In CPX mode the render nodes of partitions lead to no PCI address, and agree all the same."""
    found = hardware.devices(node.is_a("mi300x-cpx").scene())
    of_partitions = [name for name, pci in found.render_nodes.items() if pci is None]
    assert len(of_partitions) == 63 - len({one.pci for one in found.first.devices})


def test_no_device_is_opened(node: Any) -> None:
    """Neither /dev/kfd nor a render node is opened, but as a name: that has no effect on the device."""
    node.is_a("vega10")
    opened: list[tuple[str, int]] = []
    watching = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if (
            watching
            and event == "open"
            and isinstance(arguments[0], str | Path)
            and "/dev/" in str(arguments[0])
        ):
            opened.append((str(arguments[0]), arguments[2]))

    for path in ("dev/kfd", "dev/dri/renderD128"):
        node.write(path, "")
    sys.addaudithook(hook)
    try:
        hardware.devices(node.scene())
    finally:
        watching = False
    assert [path for path, flags in opened if not flags & os.O_PATH] == []
