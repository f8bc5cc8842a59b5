"""The variables of a lease and the guarantee that they amount to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.domain.cuset import CuSet
from nodeagent.domain.environment import environment, guarantee_of
from nodeagent.domain.errors import AgentError
from nodeagent.domain.guarantee import Compute, Guarantee, Hold, Memory, Requirement, Visibility
from nodeagent.domain.request import Request, SliceRequest

UNSET = {
    "HIP_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ROC_GLOBAL_CU_MASK",
    "HSA_CU_MASK_SKIP_INIT",
}


def placed(new_node, inventory, *asked: SliceRequest):
    answer = new_node(inventory).ask(Request(asked))
    assert isinstance(answer, tuple)
    return answer


def test_a_lease_of_two_different_slices_indexes_them_in_order(machines, new_node) -> None:
    """Mask index, VRAM list and device list all follow the visible devices' order."""
    node = machines.node("mi300x-spx", 2)
    slices = placed(
        new_node,
        node,
        SliceRequest(cu_percent=25, vram_bytes=1 << 30),
        SliceRequest(cus=8, vram_bytes=2 << 30),
    )
    got = environment(7, slices, node)
    assert got == {
        "ROCR_VISIBLE_DEVICES": "GPU-c34ec50444dd0a00,GPU-c34ec50444dd0a01",
        "HSA_CU_MASK": f"0:0-63;1:{slices[1].cus}",
        "GPU_MAX_HW_QUEUES": "1",
        "GPULEASE_ID": "7",
        "GPULEASE_VRAM_BYTES": f"{1 << 30},{2 << 30}",
        "GPULEASE_DEVICES": "0000:11:00.0/0,0000:12:00.0/0",
        **dict.fromkeys(UNSET),
    }


def test_exactly_one_visibility_variable_is_set(machines, new_node) -> None:
    """Two of them together index what the other left over (ollama/ollama#5766)."""
    node = machines.node("mi210")
    got = environment(1, placed(new_node, node, SliceRequest()), node)
    assert [name for name, value in got.items() if "VISIBLE" in name and value] == ["ROCR_VISIBLE_DEVICES"]
    assert {name for name, value in got.items() if value is None} == {*UNSET, "HSA_CU_MASK"}


def test_devices_without_a_uuid_of_their_own_go_by_index(machines, new_node) -> None:
    """Partitions share their card's unique id (ROCm/rocm-systems#3977)."""
    node = machines.partitions(1, 8)
    slices = placed(new_node, node, SliceRequest(device=(node.devices[5].key,)))
    assert environment(1, slices, node)["ROCR_VISIBLE_DEVICES"] == "5"


def test_a_whole_device_beside_a_part_leaves_its_index_unlisted(machines, new_node) -> None:
    """A GPU that a mask does not list is unrestricted."""
    node = machines.node("mi210", 2)
    slices = placed(new_node, node, SliceRequest(), SliceRequest(cu_percent=50))
    assert str(environment(1, slices, node)["HSA_CU_MASK"]).startswith("1:")


@pytest.mark.parametrize("cus", [CuSet(), CuSet.span(300, 8), CuSet.span(304, 1)])
def test_a_mask_that_would_not_hold_is_a_fault(machines, new_node, cus) -> None:
    """No environment is handed out with a mask that ROCr or the kernel would drop."""
    node = machines.node("mi300x-spx")
    (good,) = placed(new_node, node, SliceRequest(cu_percent=25))
    with pytest.raises(AgentError):
        environment(1, (replace(good, cus=cus),), node)


@pytest.mark.parametrize("written", ["0:0-62", "0:0-63;x", "0:0-63,400", "0:0-63;1:0-63", ""])
def test_a_mask_that_reads_back_as_anything_else_is_a_fault(
    machines, new_node, monkeypatch, written: str
) -> None:
    """ROCr's reading of the text is compared, not the sets that it was written from."""
    node = machines.node("mi300x-spx")
    slices = placed(new_node, node, SliceRequest(cu_percent=25))
    monkeypatch.setattr("nodeagent.domain.environment.format_mask", lambda sets: written)
    with pytest.raises(AgentError, match="ROCr would read"):
        environment(1, slices, node)


def test_a_device_that_is_gone_is_a_fault(machines, new_node) -> None:
    """A slice on a device that the inventory lacks has no environment."""
    node = machines.node("mi300x-spx")
    with pytest.raises(AgentError, match="no such device"):
        environment(1, placed(new_node, node, SliceRequest()), machines.node("mi210", 0))


def test_the_guarantee_is_the_weakest_slices(machines, new_node) -> None:
    """A part is held by its mask, a whole card by being alone, a whole partition by the hardware."""
    card, partitions = machines.node("mi210", 2), machines.partitions(1, 8)
    whole = placed(new_node, card, SliceRequest(count=2))
    mixed = placed(new_node, card, SliceRequest(), SliceRequest(cu_percent=25))
    partition = placed(new_node, partitions, SliceRequest())
    part_of_one = placed(new_node, partitions, SliceRequest(cu_percent=25))
    assert guarantee_of(whole, card).compute is Compute.EXCLUSIVE
    assert guarantee_of(mixed, card).compute is Compute.MASK
    assert guarantee_of(partition, partitions).compute is Compute.PARTITION
    assert guarantee_of(part_of_one, partitions).compute is Compute.MASK
    assert guarantee_of(whole, card).memory is Memory.ADVISORY
    assert guarantee_of(whole, card).visibility is Visibility.ENVIRONMENT


def test_siblings_on_a_card_are_partitions_where_no_mode_is_told(machines, new_node) -> None:
    """Without a mode file, two devices of one PCI function say that the card is partitioned."""
    node = machines.of([replace(one, compute_partition=None) for one in machines.partitions(1, 2).devices])
    assert guarantee_of(placed(new_node, node, SliceRequest()), node).compute is Compute.PARTITION


def test_the_strongest_of_what_holds_a_lease_counts() -> None:
    """Each kind by itself; a means that holds nothing of a kind takes nothing away."""
    bare = Guarantee(compute=Compute.MASK)
    hook = Hold(memory=Memory.HOOK, compute=Compute.HOOK)
    held = bare.with_holds([hook, Hold(memory=Memory.KERNEL), Hold()])
    assert held == Guarantee(Memory.KERNEL, Compute.HOOK, Visibility.ENVIRONMENT)
    assert Guarantee(compute=Compute.EXCLUSIVE).with_holds([hook]).compute is Compute.EXCLUSIVE


def test_a_sites_floor_adds_to_what_is_asked() -> None:
    """Of each kind the stronger of both demands counts."""
    floor = Requirement(memory=Memory.KERNEL)
    asked = Requirement(memory=Memory.HOOK, compute=Compute.HOOK)
    both = asked.and_floor(floor)
    assert both == Requirement(memory=Memory.KERNEL, compute=Compute.HOOK)
    short = both.unmet(Guarantee(memory=Memory.HOOK, compute=Compute.EXCLUSIVE))
    assert short == ("asks memory=kernel, has hook",)


def test_what_would_meet_a_demand_is_told_from_what_would_not() -> None:
    """Only what is missing counts, and only what is strong enough."""
    short = Requirement(memory=Memory.SUPERVISED, compute=Compute.MASK).short_of(Guarantee())
    assert short == Requirement(memory=Memory.SUPERVISED, compute=Compute.MASK)
    assert short.helped_by(Hold(memory=Memory.KERNEL))
    assert not short.helped_by(Hold(memory=Memory.HOOK))
    assert short.helped_by(Hold(memory=Memory.HOOK, compute=Compute.HOOK))
    assert not Requirement().helped_by(Hold(memory=Memory.KERNEL))
