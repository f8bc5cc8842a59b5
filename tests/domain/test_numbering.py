"""One device by every number that a tool gives it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.domain.device import DeviceState
from nodeagent.domain.errors import InvalidField
from nodeagent.domain.numbering import numbered, numbers, with_smi_indexes
from nodeagent.domain.request import Request, SliceRequest
from nodeagent.domain.selectors import check_devices, named, names_device, pinned


@pytest.fixture
def node(machines):
    """Two cards of which each tool calls the second by another number, and Intel's card0 beside them."""
    first = machines.device("mi300x-spx", 0, card="card2", slurm_index=1)
    second = machines.device("mi300x-spx", 1, card="card1", slurm_index=0)
    return machines.of(with_smi_indexes([first, second]))


@pytest.mark.parametrize(
    "name",
    [
        "card1",
        "/dev/dri/card1",
        "card:1",
        "renderD136",
        "/dev/dri/renderD136",
        "render:136",
        "kfd:3",
        "gpu:1001",
        "gpu:0x3e9",
        "gpu:0xc34ec50444dd0a01",
        "uuid:GPU-c34ec50444dd0a01",
        "GPU-c34ec50444dd0a01",
        "rocr:1",
        "hip:1",
        "HIP:01",
        "smi:0",
        " slurm:0 ",
        "pci:0000:12:00.0",
        "pci:12:00.0/0",
        "0000:12:00.0/0",
    ],
)
def test_every_number_names_its_device_and_no_other(node, name) -> None:
    """A number with its world is one device, however that tool counts."""
    first, second = node.devices
    assert names_device(second, name)
    assert not names_device(first, name)
    assert named(node, name, "device") == (second,)


@pytest.mark.parametrize(
    "name", ["cuda:0", "rocr:", "rocr:-1", "rocr:0x", "card", "renderD", "smi:9", "pci:"]
)
def test_what_is_no_number_names_nothing(node, name) -> None:
    """An unknown world, no number or one that nobody has is a bad field that says what there is."""
    with pytest.raises(InvalidField, match=r"names no device of this node; it has 0000:11:00\.0/0, 0000:12:"):
        named(node, name, "device")


@pytest.mark.parametrize("field", ["device", "not_device"])
def test_a_bare_number_is_refused_with_what_it_may_mean(node, field) -> None:
    """1 is another device to each tool: the error tells which, and what to write instead."""
    with pytest.raises(InvalidField) as refused:
        check_devices(node, Request((SliceRequest(**{field: ("1",)}),)))
    assert refused.value.field == f"slices[0].{field}"
    assert "rocr:1, hip:1, smi:0" not in refused.value.why
    assert "smi:1, slurm:1 (0000:11:00.0/0) or card:1, rocr:1, hip:1 (0000:12:00.0/0)" in refused.value.why


def test_a_bare_number_is_no_name_of_an_only_device_either(machines) -> None:
    """What works on a node of one GPU must not mean something on a node of eight."""
    with pytest.raises(InvalidField, match="write which"):
        named(machines.node("mi300x-spx"), "0", "device")


def test_a_serial_of_digits_is_a_name(machines) -> None:
    """A bare number that is a device's own is no index."""
    node = machines.node("mi300x-spx", 2, aliases=("692410004",))
    assert len(named(node, "692410004", "device")) == 2


def test_a_device_that_is_gone_has_no_numbers(node) -> None:
    """Numbers are given anew when a device goes: only its own names still mean it."""
    gone = replace(node.devices[1], state=DeviceState.GONE)
    assert not numbers(gone)
    assert not names_device(gone, "rocr:1")
    assert not names_device(gone, "renderD136")
    assert names_device(gone, "GPU-c34ec50444dd0a01")


def test_smi_counts_cards_by_their_node(node) -> None:
    """rocm-smi goes through card0, card1, …: another driver's card takes no number of it."""
    assert [one.smi_index for one in node.devices] == [1, 0]


def test_smi_counts_by_address_where_a_card_has_no_known_node(machines) -> None:
    """The driver finds cards by their PCI address, domains apart."""
    pcis = ("0001:05:00.0", "0000:c1:00.0", "0000:05:00.0", "")
    devices = [machines.device("mi300x-spx", at, pci=pci) for at, pci in enumerate(pcis)]
    devices[0] = replace(devices[0], card="card0")
    assert [one.smi_index for one in with_smi_indexes(devices)] == [2, 1, 0, 3]


def test_smi_counts_a_card_s_partitions_together(machines) -> None:
    """Partitions follow their card, though the kernel gave their nodes out after those of all cards."""
    node = machines.partitions(2, 4)
    cards = {("0000:11:00.0", 0): "card9", ("0000:12:00.0", 0): "card3"}
    devices = [
        replace(one, card=cards.get((one.pci, one.partition), f"card{20 + one.ordinal}"))
        for one in node.devices
    ]
    assert [one.smi_index for one in with_smi_indexes(devices)] == [4, 5, 6, 7, 0, 1, 2, 3]


def test_numbers_are_pinned_for_a_request_that_waits(node) -> None:
    """A partition mode that changes meanwhile gives other devices these numbers; names stay as they are."""
    asked = SliceRequest(device=("rocr:1", "c1:00.0"), not_device=("slurm:1", "smi:40", "GPU-ff"))
    found = pinned(Request((asked,)), node).slices[0]
    assert found.device == ("0000:12:00.0/0", "c1:00.0")
    assert found.not_device == ("0000:11:00.0/0", "smi:40", "GPU-ff")


@pytest.mark.parametrize(
    ("name", "means"),
    [("renderD129", ("render", 129)), ("kfd:0x10", ("kfd", 16)), ("129", None), ("gpu:0x1ffffffff", None)],
)
def test_a_number_says_its_world(name, means) -> None:
    """What is too long for an index is none."""
    assert numbered(name) == means
