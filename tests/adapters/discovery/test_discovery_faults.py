"""Discovery on machines whose files are masked, missing, empty, garbled or absurd."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.adapters.discovery import discover
from nodeagent.domain.device import DeviceState

NODES = "sys/class/kfd/kfd/topology/nodes"
PCI = "sys/bus/pci/devices/0000:01:00.0"
# One file of card 1 each, whose content decides something.
DECISIVE = [
    f"{NODES}/1/properties",
    f"{NODES}/1/gpu_id",
    f"{NODES}/1/mem_banks/0/properties",
    f"{NODES}/1/io_links/0/properties",
    f"{PCI}/mem_info_vram_total",
    f"{PCI}/current_compute_partition",
    f"{PCI}/current_memory_partition",
]
COSMETIC = [f"{PCI}/product_name", f"{PCI}/serial_number", f"{PCI}/unique_id", f"{PCI}/numa_node"]


@pytest.fixture
def two_cards(made_up: Any) -> Any:
    """A made-up machine of two healthy cards; the first has every file that discovery reads."""
    made_up.card(1)
    made_up.card(2)
    made_up.link(1, 2, 11, 15)
    made_up.link(2, 1, 11, 15)
    made_up.drm(
        128,
        "0000:01:00.0",
        device="0x740f",
        product_name="AMD Instinct MI210",
        serial_number="SN1",
        unique_id="3e9",
        numa_node=0,
        mem_info_vram_total=64 << 30,
        current_compute_partition="SPX",
        current_memory_partition="NPS1",
    )
    assert {device.state for device in discover(made_up.tree()).devices} == {DeviceState.HEALTHY}
    return made_up


@pytest.mark.parametrize("content", [b"", b"\x00\xff\x80", b"x" * 70_000, b"what\n"])
@pytest.mark.parametrize("path", DECISIVE)
def test_a_bad_file_makes_only_its_device_unhealthy(two_cards: Any, path: str, content: bytes) -> None:
    """Empty, binary, huge or meaningless: the device is listed with the file's name, the other works."""
    two_cards.file(path, content)
    inventory = discover(two_cards.tree())
    bad, good = inventory.devices
    assert (bad.state, good.state) == (DeviceState.UNHEALTHY, DeviceState.HEALTHY)
    assert f"/{path}" in (bad.reason or "")


@pytest.mark.parametrize("path", COSMETIC)
def test_an_empty_name_is_no_fault_but_a_garbled_one_is(two_cards: Any, path: str) -> None:
    """Cards print empty product names; bytes that are no text mean that the file cannot be trusted."""
    two_cards.file(path, b"\n")
    assert discover(two_cards.tree()).devices[0].state is DeviceState.HEALTHY
    two_cards.file(path, b"\xff\xfe\x00")
    bad = discover(two_cards.tree()).devices[0]
    assert f"/{path}" in (bad.reason or "")


def test_a_mode_that_may_not_be_read_is_not_taken_for_a_whole_card(two_cards: Any) -> None:
    """During a reset the partition mode gives EPERM: the card is unhealthy, never assumed to be SPX."""
    path = f"{PCI}/current_compute_partition"
    bad = discover(two_cards.tree(path)).devices[0]
    assert bad.state is DeviceState.UNHEALTHY
    assert f"/{path}" in (bad.reason or "")


def test_an_unknown_mode_is_a_fault(two_cards: Any) -> None:
    """A partition mode that this version does not know is not guessed at."""
    two_cards.file(f"{PCI}/current_compute_partition", "ZPX\n")
    assert "ZPX" in (discover(two_cards.tree()).devices[0].reason or "")


def test_a_masked_node_is_skipped_with_the_reason(two_cards: Any) -> None:
    """EPERM on a node's files skips and reports it; the other card works and is ROCr's first."""
    inventory = discover(two_cards.tree(f"{NODES}/1/"))
    assert [(device.kfd_node, device.ordinal) for device in inventory.devices] == [(2, 0)]
    assert inventory.devices[0].state is DeviceState.HEALTHY
    assert [(skipped.kfd_node, "EPERM" in skipped.reason) for skipped in inventory.skipped] == [(1, True)]


def test_a_link_to_a_masked_gpu_is_no_fault(two_cards: Any) -> None:
    """The kernel denies a link's file where it leads to a masked GPU; the device itself is fine."""
    device = discover(two_cards.tree(f"{NODES}/1/io_links/")).devices[0]
    assert (device.state, device.peers) == (DeviceState.HEALTHY, ())


def test_missing_files_are_named(two_cards: Any) -> None:
    """A card without properties, or without any VRAM size, is unhealthy and says which file would tell."""
    (two_cards.root / f"{NODES}/1/properties").unlink()
    shutil.rmtree(two_cards.root / f"{NODES}/2/mem_banks")
    first, second = discover(two_cards.tree()).devices
    assert f"/{NODES}/1/properties: is missing" in (first.reason or "")
    for name in (f"/{NODES}/2/mem_banks", "mem_info_vram_total", "local_mem_size"):
        assert name in (second.reason or "")


def test_a_garbled_processor_is_reported_and_harms_no_card(two_cards: Any) -> None:
    """A node that says it is no GPU is no device; that it could not be read stands among the skipped."""
    two_cards.file(f"{NODES}/0/properties", b"\xff")
    inventory = discover(two_cards.tree())
    assert {device.state for device in inventory.devices} == {DeviceState.HEALTHY}
    assert [skipped.kfd_node for skipped in inventory.skipped] == [0]


@pytest.mark.parametrize(
    "changes",
    [
        {"num_xcc": 0},
        {"num_xcc": 3},
        {"simd_per_cu": 0},
        {"simd_per_cu": 5},
        {"simd_count": 1 << 40},
        {"simd_count": 4 * 113},
        {"array_count": 0},
        {"simd_arrays_per_engine": 3},
        {"cu_per_simd_array": 0},
        {"num_cp_queues": 1 << 33},
        {"simd_count": "-4"},
        {"hive_id": 1 << 64},
        {"num_xcc": 8, "simd_count": 404},
    ],
)
def test_absurd_values_are_named_and_never_believed(two_cards: Any, changes: dict[str, Any]) -> None:
    """Zeroes, values that do not divide, and more than any hardware has: unhealthy, with the key's name."""
    two_cards.card(1, **changes)
    first, second = discover(two_cards.tree()).devices
    assert (first.state, second.state) == (DeviceState.UNHEALTHY, DeviceState.HEALTHY)
    assert f"/{NODES}/1/properties" in (first.reason or "")


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (f"{PCI}/mem_info_vram_total", "-1\n"),
        (f"{PCI}/numa_node", "70000\n"),
        (f"{PCI}/numa_node", "-2\n"),
        (f"{PCI}/product_name", "A" * 201),
        (f"{PCI}/serial_number", "two\nlines\n"),
        (f"{PCI}/current_memory_partition", "NPS0\n"),
    ],
)
def test_values_that_no_attribute_has_are_faults(two_cards: Any, path: str, content: str) -> None:
    """A number or text out of an attribute's range is named like any other garbled file."""
    two_cards.file(path, content)
    bad, good = discover(two_cards.tree()).devices
    assert (bad.state, good.state) == (DeviceState.UNHEALTHY, DeviceState.HEALTHY)
    assert f"/{path}" in (bad.reason or "")


def test_more_vram_than_limits_can_express_is_not_believed(two_cards: Any) -> None:
    """A size from 1 PiB on is a broken file, not a card."""
    path = f"{NODES}/1/mem_banks/0/properties"
    two_cards.file(path, f"heap_type 1\nsize_in_bytes {1 << 60}\n")
    device = discover(two_cards.tree()).devices[0]
    assert (device.state, device.grantable_bytes) == (DeviceState.UNHEALTHY, 0)


def test_a_gpu_node_without_simds_is_reported(two_cards: Any) -> None:
    """A node with a gpu_id and no SIMDs is no device, and does not vanish without a word."""
    two_cards.card(1, simd_count=0)
    inventory = discover(two_cards.tree())
    assert [device.kfd_node for device in inventory.devices] == [2]
    assert "simd_count" in inventory.skipped[0].reason


def test_a_partition_is_not_given_its_cards_vram(two_cards: Any) -> None:
    """Without memory banks a partition's size is unknown: the card's total is not its own."""
    two_cards.file(f"{PCI}/current_compute_partition", "CPX\n")
    shutil.rmtree(two_cards.root / f"{NODES}/1/mem_banks")
    device = discover(two_cards.tree()).devices[0]
    assert (device.state, device.vram_bytes) == (DeviceState.UNHEALTHY, 0)


def test_unreadable_is_told_for_each_of_several_faults(two_cards: Any) -> None:
    """All that is wrong with a device is told at once."""
    two_cards.file(f"{NODES}/1/mem_banks/0/properties", "")
    two_cards.file(f"{PCI}/product_name", b"\xff")
    reason = discover(two_cards.tree()).devices[0].reason or ""
    assert "mem_banks/0/properties" in reason
    assert "product_name" in reason


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    path=st.sampled_from([*DECISIVE, *COSMETIC, f"{NODES}/0/properties", f"{NODES}/0/gpu_id"]),
    content=st.one_of(
        st.binary(max_size=200),
        st.lists(
            st.tuples(
                st.sampled_from(["simd_count", "drm_render_minor", "location_id", "num_xcc", "heap_type"]),
                st.integers(-1, 1 << 65),
            ),
            max_size=6,
        ).map(lambda lines: "".join(f"{key} {value}\n" for key, value in lines).encode()),
    ),
)
def test_no_bytes_in_any_file_raise_or_harm_another_card(two_cards: Any, path: str, content: bytes) -> None:
    """Whatever one file holds, discovery answers, keys stay unique and the other card stays healthy."""
    full: Path = two_cards.root / path
    before = full.read_bytes()
    full.write_bytes(content)
    try:
        inventory = discover(two_cards.tree())
    finally:
        full.write_bytes(before)
    keys = [device.key for device in inventory.devices]
    assert len(keys) == len(set(keys))
    (other,) = [device for device in inventory.devices if device.kfd_node == 2]
    assert other.state is DeviceState.HEALTHY
    assert inventory.pool(other.pool) is not None
