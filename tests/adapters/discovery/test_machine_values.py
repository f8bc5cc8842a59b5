"""The shipped machines give the values that their captures are known to hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.adapters.discovery import discover
from nodeagent.adapters.machine import Files, capture, find, materialise, names
from nodeagent.adapters.sysfs import SysTree
from nodeagent.domain.device import DeviceState, Inventory
from nodeagent.domain.geometry import Geometry

# name: devices, product, gfx, geometry (CUs, XCCs, engines, arrays, CUs an array, pair), VRAM, queue slots
KNOWN = {
    "mi210": (8, "AMD Instinct MI210", "gfx90a", Geometry(104, 1, 8, 1, 14, 1), 68_702_699_520, 24),
    "mi300x-cpx": (63, "AMD Instinct MI300X", "gfx942", Geometry(38, 1, 4, 1, 10, 1), 25_767_706_624, 24),
    "mi300x-spx": (8, "AMD Instinct MI300X", "gfx942", Geometry(304, 8, 4, 1, 10, 1), 206_141_652_992, 24),
    "mi325x-vf": (1, "AMD Instinct MI325X VF", "gfx942", Geometry(304, 8, 4, 1, 10, 1), 274_542_362_624, 24),
    "r9700": (1, "AMD Radeon AI PRO R9700", "gfx1201", Geometry(64, 1, 4, 2, 8, 2), 34_208_743_424, 8),
    "rx7900xtx": (1, "AMD Radeon RX 7900 XT/XTX", "gfx1100", Geometry(96, 1, 6, 2, 8, 2), 25_753_026_560, 8),
    "vega10": (2, "AMD Instinct MI25", None, Geometry(64, 1, 4, 1, 16, 1), 17_163_091_968, 24),
}
COMPLETE = {"vega10", "r9700"}  # their captures say all that a device needs


def inventory(name: str, directory: Path, *, assumed: bool = True) -> Inventory:
    machine = find(name)
    materialise(machine if assumed else replace(machine, assumed=Files()), directory)
    return discover(SysTree(directory))


def test_the_shipped_machines_are_these() -> None:
    """Every machine file that ships has its row here."""
    assert set(names()) == set(KNOWN)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_shipped_machine_gives_its_known_values(name: str, tmp_path: Path) -> None:
    """Count, product, target, geometry, VRAM and queues are the capture's; all healthy, keys unique."""
    found = inventory(name, tmp_path)
    count, *values = KNOWN[name]
    assert found.skipped == ()
    assert [(device.state, device.reason) for device in found.devices] == [
        (DeviceState.HEALTHY, None)
    ] * count
    assert len({device.key for device in found.devices}) == count
    for device in found.devices:
        seen = [device.product, device.gfx, device.geometry, device.vram_bytes, device.queue_slots]
        assert seen == values
    assert [device.ordinal for device in found.devices] == list(range(count))
    for pool in found.pools:
        assert pool.vram_bytes >= sum(d.vram_bytes for d in found.devices if d.pool == pool.key)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_without_its_assumed_part_a_machine_is_listed_unhealthy(name: str, tmp_path: Path) -> None:
    """What the capture lacks is not guessed: the same number of devices, each with the reason."""
    found = inventory(name, tmp_path, assumed=False)
    assert len(found.devices) == KNOWN[name][0]
    assert len({device.key for device in found.devices}) == len(found.devices)
    states = {device.state for device in found.devices}
    assert states == {DeviceState.HEALTHY if name in COMPLETE else DeviceState.UNHEALTHY}
    assert all(device.reason for device in found.devices) is (name not in COMPLETE)


@pytest.mark.parametrize("assumed", [True, False])
@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_laid_out_machine_is_captured_as_it_was(name: str, tmp_path: Path, assumed: bool) -> None:
    """Laying out and capturing gives the same files and links, byte for byte."""
    machine = find(name) if assumed else replace(find(name), assumed=Files())
    materialise(machine, tmp_path)
    assert capture(tmp_path).captured == (machine.content() if assumed else machine.captured)


def test_the_cpx_capture_has_eight_cards_of_one_hive(tmp_path: Path) -> None:
    """63 partitions, the last card one short; partitions share ids, so none has a UUID; 62 peers each."""
    found = inventory("mi300x-cpx", tmp_path)
    assert sorted(Counter(device.pci for device in found.devices).values()) == [7] + [8] * 7
    assert {device.uuid for device in found.devices} == {None}
    assert len({device.hive for device in found.devices}) == 1
    first = found.devices[0]
    assert Counter((peer.kind, peer.weight) for peer in first.peers) == {("xgmi", 13): 7, ("xgmi", 41): 55}
    assert {pool.vram_bytes for pool in found.pools} == {206_141_652_992}
    assert {device.partition for device in found.devices} == set(range(8))


def test_the_mi210_capture_has_two_hives_of_four(tmp_path: Path) -> None:
    """Each card has three XGMI peers of its hive and four PCIe peers of the other, and its own UUID."""
    found = inventory("mi210", tmp_path)
    assert sorted(Counter(device.hive for device in found.devices).values()) == [4, 4]
    for device in found.devices:
        assert sorted(Counter((peer.kind, peer.weight) for peer in device.peers).items()) == [
            (("pcie", 72), 4),
            (("xgmi", 15), 3),
        ]
    assert Counter(device.numa_node for device in found.devices) == {0: 4, 1: 4}
    assert len({device.uuid for device in found.devices} - {None}) == 8
    assert {device.render_node for device in found.devices} == {f"renderD{n}" for n in range(128, 136)}


def test_the_vega10_capture_collides_and_is_named_by_render_node(tmp_path: Path) -> None:
    """Both GPUs of the old capture say location 6400: their keys are their render nodes."""
    found = inventory("vega10", tmp_path)
    assert [device.key for device in found.devices] == ["renderD128/0", "renderD129/0"]
    assert found.generation == 2


def test_the_spx_machine_tells_its_eight_cards_apart(tmp_path: Path) -> None:
    """The assumed part gives the repeated node eight addresses and ids, four cards a processor, full XGMI."""
    found = inventory("mi300x-spx", tmp_path)
    assert [device.render_node for device in found.devices] == [f"renderD{128 + 8 * n}" for n in range(8)]
    assert (
        len({device.pci for device in found.devices}) == len({device.uuid for device in found.devices}) == 8
    )
    assert Counter(device.numa_node for device in found.devices) == {0: 4, 1: 4}
    assert {len(device.peers) for device in found.devices} == {7}
    assert {device.compute_partition for device in found.devices} == {"SPX"}
