"""What discovery makes of machines whose files are in order."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.adapters.discovery import discover
from nodeagent.adapters.drm import vram_used
from nodeagent.adapters.identity import smi_uuids
from nodeagent.adapters.kfd import generation
from nodeagent.adapters.sysfs import Unread
from nodeagent.domain.device import Device, DeviceState, Inventory, Link

GIB = 1 << 30


def only(inventory: Inventory) -> Device:
    (device,) = inventory.devices
    return device


def keys(inventory: Inventory) -> list[str]:
    return [device.key for device in inventory.devices]


def test_a_node_without_kfd_has_no_devices(tmp_path: Any, made_up: Any) -> None:
    """No KFD at all is an empty inventory without a generation; a processor alone has no device either."""
    assert discover(type(made_up.tree())(tmp_path / "none")) == Inventory(None, (), ())
    assert discover(made_up.tree()) == Inventory(1, (), ())


def test_the_generation_follows_kfd(made_up: Any) -> None:
    """A changed generation_id shows in `generation` and in the next inventory; a garbled one is none."""
    path = "sys/class/kfd/kfd/topology/generation_id"
    assert generation(made_up.tree()) == discover(made_up.tree()).generation == 1
    made_up.file(path, "2\n")
    assert generation(made_up.tree()) == discover(made_up.tree()).generation == 2
    made_up.file(path, "soon\n")
    assert generation(made_up.tree()) is None


def test_a_card_shows_everything_that_sysfs_says(made_up: Any) -> None:
    """PCI address, names, modes and NUMA node come from DRM; product_name wins over the table."""
    made_up.card(1)
    made_up.drm(
        128,
        "0000:01:00.0",
        product_name="AMD Instinct MI210 X",
        serial_number="SN7",
        numa_node=1,
        current_compute_partition="SPX",
        current_memory_partition="NPS1",
        mem_info_vram_total=64 * GIB,
    )
    made_up.file("sys/bus/pci/devices/0000:01:00.0/drm/card3/dev", "226:3\n")
    device = only(discover(made_up.tree(), reserve_percent=0))
    assert (device.key, device.pci, device.partition) == ("0000:01:00.0/0", "0000:01:00.0", 0)
    assert (device.product, device.gfx, device.cus) == ("AMD Instinct MI210 X", "gfx90a", 104)
    assert (device.numa_node, device.compute_partition, device.memory_partition) == (1, "SPX", "NPS1")
    assert (device.uuid, device.gpu_id, device.epoch) == ("GPU-00000000000003e9", 101, 1)
    assert {"SN7", "1001", "0x00000000000003e9"} <= set(device.aliases)
    assert (device.card, device.smi_index, device.slurm_index) == ("card3", 0, None)
    assert (device.vram_bytes, device.grantable_bytes) == (64 * GIB, 64 * GIB)


@pytest.mark.parametrize(
    ("version", "gfx"),
    [(90010, "gfx90a"), (90402, "gfx942"), (110501, "gfx1151"), (120001, "gfx1201"), (100300, "gfx1030")],
)
def test_target_names_have_hex_minor_and_stepping(made_up: Any, version: int, gfx: str) -> None:
    """The decimal target version becomes the name that compilers use."""
    made_up.card(1, gfx_target_version=version)
    assert discover(made_up.tree(), include_apus=True).devices[0].gfx == gfx


def test_smi_spelling_of_the_uuid() -> None:
    """The UUID that AMD SMI prints is an alias, in the form of older and of newer releases."""
    older, newer = smi_uuids(0x8E1BB56457ADDD1B, 0x74B5, 3)
    assert older == "8eff74b5-0000-1000-801b-b56457addd1b"
    assert newer == "8e0374b5-0000-1000-801b-b56457addd1b"


def test_location_collisions_fall_back_to_the_render_node(made_up: Any) -> None:
    """Nodes that claim one PCI address are all named by render node, and by topology node without one."""
    made_up.card(1, location_id=6400)
    made_up.card(2, location_id=6400)
    made_up.card(3, location_id=6400, drm_render_minor=0)
    made_up.card(4)
    assert keys(discover(made_up.tree())) == ["renderD128/0", "renderD129/0", "node3/0", "0000:04:00.0/0"]


def test_cards_that_collide_do_not_share_a_pool(made_up: Any) -> None:
    """Two cards behind one claimed address are two pools of VRAM, not one."""
    made_up.card(1, location_id=6400)
    made_up.card(2, location_id=6400)
    assert [pool.key for pool in discover(made_up.tree()).pools] == ["renderD128", "renderD129"]


def test_the_render_nodes_link_wins_over_the_location(made_up: Any) -> None:
    """Location ids that repeat do no harm where the render nodes' links tell the PCI devices apart."""
    made_up.card(1, location_id=6400)
    made_up.card(2, location_id=6400)
    made_up.drm(128, "0000:19:00.0")
    made_up.drm(129, "0000:1a:00.0")
    assert keys(discover(made_up.tree())) == ["0000:19:00.0/0", "0000:1a:00.0/0"]


def test_a_location_of_zero_in_another_domain_is_an_address(made_up: Any) -> None:
    """A virtual machine's card may sit at 00:00.0 of a PCI domain of its own (V710)."""
    made_up.card(1, location_id=0, domain=2)
    made_up.card(2, location_id=0)
    assert keys(discover(made_up.tree())) == ["0002:00:00.0/0", "renderD129/0"]


def test_virtual_functions_are_cards_of_their_own(made_up: Any) -> None:
    """A PCI function other than 0 is no partition where the render node's link says so."""
    made_up.card(1, location_id=0x8310)
    made_up.card(2, location_id=0x8311)
    made_up.drm(128, "0000:83:02.0")
    made_up.drm(129, "0000:83:02.1")
    assert keys(discover(made_up.tree())) == ["0000:83:02.0/0", "0000:83:02.1/0"]


def partitioned(made_up: Any, memory_mode: str) -> None:
    """A made-up card in CPX, eight partitions of 1 GiB, as nodes 1 to 8."""
    for index in range(8):
        node = 1 + index
        made_up.card(node, location_id=0xC100 | index, unique_id=77, gfx_target_version=90402)
        made_up.file(
            f"sys/class/kfd/kfd/topology/nodes/{node}/mem_banks/0/properties",
            f"heap_type 1\nsize_in_bytes {GIB}\n",
        )
        if index:
            made_up.device_link(127 + node, f"../../../devices/platform/amdgpu_xcp_{index}")
    made_up.drm(
        128,
        "0000:c1:00.0",
        unique_id="4d",
        mem_info_vram_total=8 * GIB,
        current_compute_partition="CPX",
        current_memory_partition=memory_mode,
    )


def test_partitions_share_their_cards_pool(made_up: Any) -> None:
    """Platform render nodes are partitions of the located card; in NPS1 its VRAM is one pool."""
    partitioned(made_up, "NPS1")
    inventory = discover(made_up.tree(), reserve_percent=0, idle_bytes={"0000:c1:00.0": 8 << 24}.__getitem__)
    assert keys(inventory) == [f"0000:c1:00.0/{index}" for index in range(8)]
    (pool,) = inventory.pools
    assert (pool.key, pool.region) == ("0000:c1:00.0", "drm/0000:c1:00.0/vram")
    assert (pool.vram_bytes, pool.grantable_bytes) == (8 * GIB, 8 * GIB - (8 << 24))
    assert {device.grantable_bytes for device in inventory.devices} == {GIB - (1 << 24)}
    assert {device.uuid for device in inventory.devices} == {None}
    assert {device.compute_partition for device in inventory.devices} == {"CPX"}


def test_partitions_that_list_all_memory_have_an_even_share(made_up: Any) -> None:
    """Allocation mode ALL: every bank has the card's whole size, of which each partition's share is even."""
    partitioned(made_up, "NPS1")
    assert {one.even_bytes for one in discover(made_up.tree(), reserve_percent=0).devices} == {0}
    for node in range(1, 9):
        path = f"sys/class/kfd/kfd/topology/nodes/{node}/mem_banks/0/properties"
        made_up.file(path, f"heap_type 1\nsize_in_bytes {8 * GIB}\n")
    found = discover(made_up.tree(), reserve_percent=0)
    assert {(one.grantable_bytes, one.even_bytes) for one in found.devices} == {(8 * GIB, GIB)}


def test_memory_domains_are_pools_in_one_region(made_up: Any) -> None:
    """In NPS4 two of eight partitions share a pool, and all pools lie in the card's one dmem region."""
    partitioned(made_up, "NPS4")
    inventory = discover(made_up.tree())
    assert [pool.key for pool in inventory.pools] == [f"0000:c1:00.0#{domain}" for domain in range(4)]
    assert {(pool.vram_bytes, pool.region) for pool in inventory.pools} == {
        (2 * GIB, "drm/0000:c1:00.0/vram")
    }
    assert [device.pool[-1] for device in inventory.devices] == list("00112233")


def test_masked_partitions_do_not_move_the_others(made_up: Any) -> None:
    """The memory domain of a partition does not depend on how many of its siblings are visible."""
    partitioned(made_up, "NPS4")
    masked = [f"sys/class/kfd/kfd/topology/nodes/{node}/" for node in (2, 3, 5, 6, 7, 8)]
    inventory = discover(made_up.tree(*masked))
    assert [(device.key[-1], device.pool[-1]) for device in inventory.devices] == [("0", "0"), ("3", "1")]


def test_unique_ids_that_repeat_give_no_uuid(made_up: Any) -> None:
    """A UUID names one device of the node or none; an id that only DRM knows is not one of ROCr's."""
    made_up.card(1, unique_id=5)
    made_up.card(2, unique_id=5)
    made_up.card(3, unique_id=0)
    made_up.card(4, unique_id=9)
    made_up.drm(130, "0000:03:00.0", unique_id="7")
    devices = discover(made_up.tree()).devices
    assert [device.uuid for device in devices] == [None, None, None, "GPU-0000000000000009"]
    assert [device.unique_id for device in devices] == [5, 5, 7, 9]


def test_distinct_ids_of_drm_tell_copied_nodes_apart(made_up: Any) -> None:
    """Where KFD repeats an id and every PCI device has its own, the devices have UUIDs."""
    for node in (1, 2):
        made_up.card(node, unique_id=5)
        made_up.drm(127 + node, f"0000:0{node}:00.0", unique_id=f"{node + 4:x}")
    devices = discover(made_up.tree()).devices
    assert [device.uuid for device in devices] == ["GPU-0000000000000005", "GPU-0000000000000006"]


def test_vram_comes_from_banks_then_drm_then_properties(made_up: Any) -> None:
    """Framebuffer banks of both kinds are summed; DRM's total and local_mem_size stand in for them."""
    made_up.card(1)
    banks = "sys/class/kfd/kfd/topology/nodes/1/mem_banks"
    made_up.file(f"{banks}/1/properties", f"heap_type 2\nsize_in_bytes {GIB}\n")
    made_up.file(f"{banks}/2/properties", f"heap_type 0\nsize_in_bytes {GIB}\n")
    for node in (2, 3):
        made_up.card(node, local_mem_size=GIB)
        (made_up.root / f"sys/class/kfd/kfd/topology/nodes/{node}/mem_banks/0/properties").unlink()
    made_up.drm(129, "0000:02:00.0", mem_info_vram_total=2 * GIB)
    devices = discover(made_up.tree()).devices
    assert [device.vram_bytes // GIB for device in devices] == [65, 2, 1]


def test_missing_queue_counts_are_assumed_by_generation(made_up: Any) -> None:
    """Kernels that do not tell num_cp_queues get what cards of that generation have."""
    made_up.card(1, num_cp_queues=0)
    made_up.card(2, num_cp_queues=0, gfx_target_version=0)
    made_up.card(3, num_cp_queues=0, gfx_target_version=110000, simd_per_cu=4)
    made_up.card(4, num_cp_queues=11)
    assert [device.queue_slots for device in discover(made_up.tree()).devices] == [24, 24, 8, 11]


def test_links_become_peers_and_the_nearest_processor_the_numa_node(made_up: Any) -> None:
    """Of several links to a GPU the closest counts; of those to processors, it tells the NUMA node."""
    made_up.node(1, {"cpu_cores_count": 16, "simd_count": 0})
    made_up.card(2)
    made_up.card(3)
    made_up.link(2, 0, 2, 52, group="p2p_links")
    made_up.link(2, 1, 2, 20)
    made_up.link(2, 3, 2, 40, group="p2p_links")
    made_up.link(2, 3, 11, 15)
    made_up.link(2, 2, 11, 1)
    made_up.link(2, 99, 11, 1)
    made_up.link(3, 2, 2, 72)
    devices = discover(made_up.tree()).devices
    assert devices[0].peers == (Link("0000:03:00.0/0", "xgmi", 15),)
    assert devices[1].peers == (Link("0000:02:00.0/0", "pcie", 72),)
    assert [device.numa_node for device in devices] == [1, None]


def apu(made_up: Any, node: int) -> None:
    made_up.card(node, cpu_cores_count=8, gfx_target_version=110501, simd_per_cu=2, simd_count=208)


def test_an_apu_beside_a_discrete_gpu_is_left_out_with_the_setting_named(made_up: Any) -> None:
    """The APU is listed as excluded, keeps its place in ROCr's order, and the setting brings it in."""
    apu(made_up, 1)
    made_up.card(2)
    first, second = discover(made_up.tree()).devices
    assert (first.state, second.state) == (DeviceState.EXCLUDED, DeviceState.HEALTHY)
    assert "include_apus" in (first.reason or "")
    assert (first.ordinal, second.ordinal) == (0, 1)
    included = discover(made_up.tree(), include_apus=True).devices
    assert {device.state for device in included} == {DeviceState.HEALTHY}


def test_an_apu_alone_is_a_device(made_up: Any) -> None:
    """Where there is no discrete GPU the APU is what there is to share."""
    apu(made_up, 1)
    apu(made_up, 2)
    assert {device.state for device in discover(made_up.tree()).devices} == {DeviceState.HEALTHY}


def test_an_apu_is_known_by_its_target_without_cores(made_up: Any) -> None:
    """Kernels list many APUs as a GPU node of its own, without CPU cores."""
    made_up.card(1, gfx_target_version=110501, simd_per_cu=2)
    made_up.card(2)
    assert discover(made_up.tree()).devices[0].state is DeviceState.EXCLUDED


def test_an_mi300a_is_never_left_out(made_up: Any) -> None:
    """A data-centre APU carries CPU cores and is no display chip, whatever it is beside."""
    made_up.card(1, cpu_cores_count=24, gfx_target_version=90402, device_id=0x74A0)
    made_up.card(2)
    device = discover(made_up.tree()).devices[0]
    assert (device.state, device.product) == (DeviceState.HEALTHY, "AMD Instinct MI300A")


def test_an_unknown_card_is_named_by_target_or_id(made_up: Any) -> None:
    """No product name is made up for an id that the table does not hold."""
    made_up.card(1, device_id=0xFFF0)
    made_up.card(2, device_id=0xFFF0, gfx_target_version=0)
    assert [device.product for device in discover(made_up.tree()).devices] == ["AMD gfx90a", "AMD GPU 0xfff0"]


def test_used_vram_is_read_by_pci_address(made_up: Any) -> None:
    """The idle baseline comes from the card's counter; without one there is a reason, not a 0."""
    made_up.drm(128, "0000:01:00.0", mem_info_vram_used=12_582_912)
    assert vram_used(made_up.tree(), "0000:01:00.0") == 12_582_912
    assert isinstance(vram_used(made_up.tree(), "0000:02:00.0"), Unread)
    made_up.file("sys/bus/pci/devices/0000:01:00.0/mem_info_vram_used", "-1\n")
    assert isinstance(vram_used(made_up.tree(), "0000:01:00.0"), Unread)


def test_partitions_in_a_bare_topology_are_told_by_the_low_bits(made_up: Any) -> None:
    """Without DRM, siblings that differ only in the low bits are partitions; a lone gfx90a has a function."""
    made_up.card(1, location_id=0xC100, gfx_target_version=90402)
    made_up.card(2, location_id=0xC101, gfx_target_version=90402)
    made_up.card(3, location_id=0xC205, gfx_target_version=90402)
    made_up.card(4, location_id=0xC301)
    expected = ["0000:c1:00.0/0", "0000:c1:00.0/1", "0000:c2:00.0/5", "0000:c3:00.1/0"]
    assert keys(discover(made_up.tree())) == expected


def test_a_partition_that_hangs_under_its_card_keeps_its_number(made_up: Any) -> None:
    """A render node may link to the card itself though its location_id tells a partition."""
    made_up.card(1, location_id=0xC103, gfx_target_version=90402)
    made_up.drm(128, "0000:c1:00.0")
    assert keys(discover(made_up.tree())) == ["0000:c1:00.0/3"]
