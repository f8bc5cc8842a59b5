"""Filters by type, device and deny list."""

from __future__ import annotations

import pytest

from nodeagent.domain.errors import InvalidField
from nodeagent.domain.refusals import Code
from nodeagent.domain.request import Request, SliceRequest
from nodeagent.domain.selectors import check_devices, is_type, mismatch, names_device


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("AMD Instinct MI300X", True),
        ("amd instinct mi300x", True),
        (" MI300X ", True),
        ("Instinct MI300X", False),
        ("MI300", False),
        ("MI300A", False),
        ("MI30", False),
        ("300X", False),
        ("MI300*", True),
        ("*mi300?", True),
        ("gfx942", True),
        ("GFX942", True),
        ("gfx94", False),
        ("gfx94?", True),
    ],
)
def test_a_type_is_exact_or_a_glob(machines, name, fits) -> None:
    """MI300 must not take an MI300X in silence (Project-HAMi/HAMi#295)."""
    assert is_type(machines.device("mi300x-spx"), name) is fits


@pytest.mark.parametrize(
    "name",
    [
        "0000:c1:00.0/0",
        "0000:C1:00.0",
        "c1:00.0",
        "C1:00.0/0",
        "00000000:C1:00.0",
        "GPU-c34ec50444dd0a6c",
        "gpu-C34EC50444DD0A6C",
        "c34ec50444dd0a6c",
        "0xC34EC50444DD0A6C",
        "14073402507705256556",
        "renderD136",
        "/dev/dri/renderD136",
        "RENDERD136",
        "69241000400",
        "ee ff",
    ],
)
def test_a_device_is_named_in_any_spelling_that_a_tool_prints(machines, name) -> None:
    """Key, PCI address, ROCr and SMI ids, render node and serial all name the device."""
    device = machines.device(
        "mi300x-spx",
        1,
        key="0000:c1:00.0/0",
        pci="0000:c1:00.0",
        unique_id=14073402507705256556,
        uuid="GPU-c34ec50444dd0a6c",
        aliases=("69241000400", "EE FF"),
    )
    assert names_device(device, name)
    assert not names_device(machines.device("mi300x-spx", 2), name)


@pytest.mark.parametrize(
    "name", ["0", "0001:11:00.0", "11:00.1", "11:00.0/1", "renderD12", "GPU-0", "card0", "x", "9" * 5000]
)
def test_a_name_that_is_close_names_nothing(machines, name) -> None:
    """Another domain, function, partition or a part of a name is another thing."""
    assert not names_device(machines.device("mi300x-spx"), name)


def test_an_id_of_zero_names_no_device(machines) -> None:
    """APUs have unique_id 0, which is no id."""
    assert not names_device(machines.device("mi300x-spx", unique_id=0, uuid=None), "0x0")


def test_a_shared_id_or_a_bare_pci_address_means_every_partition(machines) -> None:
    """Partitions of a card share id and PCI address; the key tells them apart."""
    node = machines.partitions(2, 8)
    first = node.devices[0]
    assert sum(names_device(one, f"GPU-{first.unique_id:016x}") for one in node.devices) == 8
    assert sum(names_device(one, first.pci) for one in node.devices) == 8
    assert sum(names_device(one, f"{first.pci}/3") for one in node.devices) == 1


@pytest.mark.parametrize(
    "asked",
    [
        SliceRequest(type=("", " ")),
        SliceRequest(not_type=("",)),
        SliceRequest(device=(" ", "")),
        SliceRequest(not_device=("",)),
        SliceRequest(type=("", "gfx942"), not_type=("", "gfx90a")),
    ],
)
def test_empty_filter_items_mean_nothing(machines, asked) -> None:
    """A filter of empty items only filters nothing (Project-HAMi/HAMi#2395)."""
    assert mismatch(machines.device("mi300x-spx"), asked) is None
    check_devices(machines.node("mi300x-spx"), Request((asked,)))


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (SliceRequest(type=("MI210",)), Code.CARD_TYPE_MISMATCH),
        (SliceRequest(type=("MI300X",), not_type=("gfx942",)), Code.CARD_TYPE_MISMATCH),
        (SliceRequest(not_type=("MI3*",)), Code.CARD_TYPE_MISMATCH),
        (SliceRequest(device=("renderD136",)), Code.CARD_UUID_MISMATCH),
        (SliceRequest(device=("renderD128",), not_device=("11:00.0",)), Code.CARD_UUID_MISMATCH),
    ],
)
def test_deny_lists_win_and_types_come_first(machines, asked, code) -> None:
    """A device that is both asked for and ruled out is ruled out."""
    found = mismatch(machines.device("mi300x-spx"), asked)
    assert found is not None
    assert found[0] is code


def test_a_device_that_the_node_lacks_is_a_bad_field(machines) -> None:
    """An unknown id is never ignored (ROCm/container-toolkit#116); a deny list may name other nodes'."""
    node = machines.node("mi300x-spx", 2)
    with pytest.raises(InvalidField) as caught:
        check_devices(node, Request((SliceRequest(), SliceRequest(device=("renderD128", "GPU-ff")))))
    assert caught.value.field == "slices[1].device"
    check_devices(node, Request((SliceRequest(not_device=("GPU-ff",)),)))


def test_a_node_of_many_devices_names_a_few(machines) -> None:
    """The message names some devices and counts the rest: dozens of keys are no help."""
    with pytest.raises(InvalidField, match=r"it has (0000:[^,]+, ){7}0000:\S+ and 12 more$"):
        check_devices(machines.node("mi300x-spx", 20), Request((SliceRequest(device=("GPU-ff",)),)))
