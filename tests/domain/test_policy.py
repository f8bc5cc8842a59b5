"""Which of the devices that fit are taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.domain.placement import place
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.request import Policy, Request, SliceRequest

GIB = 1 << 30


def ask(*slices: SliceRequest, **rest) -> Request:
    return Request(slices or (SliceRequest(),), **rest)


def numbers(inventory, answer) -> list[int]:
    """The devices of a grant by their place in the inventory."""
    assert isinstance(answer, tuple), answer
    order = [device.key for device in inventory.devices]
    return [order.index(one.device) for one in answer]


def refused(answer) -> Refusal:
    assert isinstance(answer, Refusal), answer
    return answer


def test_binpack_fills_and_spread_levels(machines, new_node) -> None:
    """Binpack takes the fullest device that fits, spread the emptiest, ties the first."""
    small = SliceRequest(cu_percent=10, vram_bytes=GIB)
    for policy, expected in ((Policy.BINPACK, [0, 0, 0]), (Policy.SPREAD, [0, 1, 2])):
        node = new_node(machines.node("mi300x-spx", 3))
        got = [numbers(node.inventory, node.ask(ask(small, placement=policy)))[0] for _ in range(3)]
        assert got == expected


@pytest.mark.parametrize("policy", [Policy.BINPACK, Policy.SPREAD, Policy.TOPOLOGY])
@given(busy=st.sets(st.integers(0, 7), max_size=7))
def test_a_whole_group_is_not_broken_into_beside_a_broken_one(machines, new_node, policy, busy) -> None:
    """A lease of one device takes it from the group of linked ones that has the fewest idle, in any order."""
    devices = machines.hives().devices
    node = new_node(machines.of([devices[at] for at in (0, 4, 1, 5, 2, 6, 3, 7)]))
    for at in sorted(busy):
        node.ask(ask(SliceRequest(device=(devices[at].key,))))
    idle = [sum(at not in busy for at in group) for group in (range(4), range(4, 8))]
    (taken,) = node.ask(ask(placement=policy))
    group = [one.key for one in devices].index(taken.device) // 4
    assert idle[group] == min(filter(None, idle))


def test_small_leases_leave_linked_devices_together(machines, new_node) -> None:
    """Four leases that fill a device each leave four linked ones, where devices' order mixes the groups."""
    devices = machines.hives().devices
    node = new_node(machines.of([devices[at] for at in (0, 4, 1, 5, 2, 6, 3, 7)]))
    for _ in range(4):
        node.ask(ask(SliceRequest(cu_percent=60)))
    got = node.ask(ask(SliceRequest(count=4), link_bind=True))
    assert {one.device for one in got} == {one.key for one in devices[4:]}


def test_alike_partitions_are_spread_over_the_cards_or_filled_card_by_card(machines, new_node) -> None:
    """Of idle partitions spread takes one of the emptiest card, binpack one of the fullest."""
    node = new_node(machines.partitions(3, 4))
    every_cu = SliceRequest(cu_percent=100, vram_bytes=GIB)
    spread = [numbers(node.inventory, node.ask(ask(every_cu, placement=Policy.SPREAD))) for _ in range(4)]
    assert spread == [[0], [4], [8], [1]]
    node.free(1)
    node.ask(ask(SliceRequest(cu_percent=100, vram_bytes=GIB, device=(node.inventory.devices[5].key,))))
    assert numbers(node.inventory, node.ask(ask(every_cu))) == [6]


def test_topology_takes_the_group_with_the_most_links(machines, new_node) -> None:
    """Three devices with one hive broken into go to the other hive, where all are linked."""
    node = new_node(machines.hives())
    node.ask(ask(SliceRequest(count=2), placement=Policy.BINPACK))
    assert numbers(node.inventory, node.ask(ask(SliceRequest(count=3), placement=Policy.TOPOLOGY))) == [
        4,
        5,
        6,
    ]


@pytest.mark.parametrize("policy", [Policy.BINPACK, Policy.SPREAD])
def test_whole_devices_of_one_lease_are_linked_where_they_can_be(machines, new_node, policy) -> None:
    """Two whole devices of one lease come from one group of linked ones: they are as empty as any two."""
    node = new_node(machines.hives())
    for number in (0, 1, 2, 4):
        node.ask(ask(SliceRequest(device=(node.inventory.devices[number].key,))))
    assert numbers(node.inventory, node.ask(ask(SliceRequest(count=2), placement=policy))) == [5, 6]


def test_links_never_outweigh_what_the_policy_wants(machines, new_node) -> None:
    """Two parts go to the two fullest devices, though these are not linked and others are."""
    node, half = new_node(machines.hives()), SliceRequest(cu_percent=50)
    for number in (1, 6):
        node.ask(ask(SliceRequest(cu_percent=25, device=(node.inventory.devices[number].key,))))
    assert sorted(numbers(node.inventory, node.ask(ask(SliceRequest(count=2, cu_percent=25))))) == [1, 6]
    assert not {1, 6} & set(numbers(node.inventory, node.ask(ask(half, half, placement=Policy.SPREAD))))


def test_topology_is_a_wish_and_link_bind_a_demand(machines) -> None:
    """Five devices of two hives of four are granted by topology and refused by link-bind."""
    node, five = machines.hives(), SliceRequest(count=5)
    assert len(numbers(node, place(node, (), ask(five, placement=Policy.TOPOLOGY)))) == 5
    no = refused(place(node, (), ask(five, link_bind=True)))
    assert no.code is Code.LINK_NOT_FIT
    assert len(no.devices) == 8


def test_link_bind_crosses_to_the_hive_that_has_room(machines, new_node) -> None:
    """With one device of the first hive taken, four linked devices are those of the second."""
    node = new_node(machines.hives())
    node.ask(ask())
    assert numbers(node.inventory, node.ask(ask(SliceRequest(count=4), link_bind=True))) == [4, 5, 6, 7]


def test_numa_bind_keeps_a_lease_on_one_node(machines) -> None:
    """All devices come from one NUMA node, or the request is refused."""
    node = machines.hives()
    got = numbers(node, place(node, (), ask(SliceRequest(count=4), numa_bind=True)))
    assert got == [0, 2, 4, 6]
    assert refused(place(node, (), ask(SliceRequest(count=5), numa_bind=True))).code is Code.NUMA_NOT_FIT
    both = ask(SliceRequest(count=3), numa_bind=True, link_bind=True)
    no = refused(place(node, (), both))
    assert no.code is Code.NUMA_NOT_FIT
    assert "XGMI" in no.why


def test_an_unknown_numa_node_satisfies_no_bind(machines) -> None:
    """A device whose NUMA node the kernel does not tell is never taken for bound."""
    node = machines.node("mi210", 2, numa_node=None)
    assert refused(place(node, (), ask(numa_bind=True))).code is Code.NUMA_NOT_FIT


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("count", [1, 8, 40, 63, 64])
def test_sixty_three_partitions_place_without_explosion(machines, policy, count) -> None:
    """Any number of 63 partitions is answered under every policy, also the one too many."""
    node = machines.of(machines.partitions(8, 8).devices[:63])
    answer = place(node, (), ask(SliceRequest(count=count, cu_percent=50, vram_bytes=GIB), placement=policy))
    assert isinstance(answer, Refusal) if count == 64 else len(set(numbers(node, answer))) == count


def test_the_search_backs_out_of_a_choice_that_starves_another_slice(machines) -> None:
    """A slice that any device could serve leaves the only one that another needs."""
    node = machines.node("mi210", 2)
    got = place(
        node, (), ask(SliceRequest(cu_percent=25), SliceRequest(device=("renderD128",), cu_percent=25))
    )
    assert numbers(node, got) == [1, 0]
