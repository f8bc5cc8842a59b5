"""Machine files: reading, writing, laying out and capturing."""

from __future__ import annotations

import json
import lzma
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.discovery import discover
from nodeagent.adapters.machine import (
    Files,
    Machine,
    SimulatedTree,
    capture,
    dump,
    find,
    load,
    materialise,
    names,
)
from nodeagent.domain.errors import InvalidField, OutsideFault

NODES = "sys/class/kfd/kfd/topology/nodes"
GOOD: dict[str, Any] = {
    "format": 1,
    "machine": "made-up-small",
    "description": "one made-up file",
    "source": "these tests",
    "made_up": True,
    "files": {"sys/a/file": "content\n"},
    "links": {"sys/b/link": "../a/file"},
    "unreadable": [],
    "assumed": {"why": "to have one", "files": {"sys/a/file": "content\nand more\n"}, "links": {}},
}


def written(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


def test_a_good_file_is_read_and_written_back_the_same(tmp_path: Path) -> None:
    """Reading and writing keeps everything, and the same machine always gives the same bytes."""
    machine = load(written(tmp_path / "in.json", GOOD))
    assert (machine.name, machine.made_up) == ("made-up-small", True)
    for suffix in (".json", ".json.xz"):
        first, second = tmp_path / f"1{suffix}", tmp_path / f"2{suffix}"
        dump(machine, first)
        dump(machine, second)
        assert load(first) == machine
        assert first.read_bytes() == second.read_bytes()


def test_bytes_that_are_no_text_survive(tmp_path: Path) -> None:
    """Content is kept byte for byte through JSON, a tree and a capture."""
    odd = bytes(range(256))
    machine = Machine(
        "made-up-odd", "odd bytes", "tests", True, Files({f"{NODES}/1/properties": odd, "sys/x/y": odd})
    )
    dump(machine, tmp_path / "odd.json")
    assert load(tmp_path / "odd.json") == machine
    materialise(machine, tmp_path / "tree")
    assert capture(tmp_path / "tree").captured.files == {f"{NODES}/1/properties": odd}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"format": 2}, "format"),
        ({"colour": 1}, "colour"),
        ({"machine": ""}, "machine"),
        ({"source": None}, "source"),
        ({"files": []}, "files"),
        ({"files": {"sys/x": 1}}, "files"),
        ({"files": {"/sys/x": ""}}, "files"),
        ({"files": {"sys/../x": ""}}, "files"),
        ({"files": {"etc/passwd": ""}}, "files"),
        ({"files": {"sys": ""}}, "files"),
        ({"files": {"sys//x": ""}}, "files"),
        ({"files": {"sys/x\x00": ""}}, "files"),
        ({"files": {"sys/x": "\ud800"}}, "files.sys/x"),
        ({"files": {"sys/x": "", "sys/x/y": ""}}, "sys/x/y"),
        ({"links": {"sys/l": "/etc"}}, "links.sys/l"),
        ({"links": {"sys/l": "../etc"}}, "links.sys/l"),
        ({"links": {"sys/l": "a/../../.."}}, "links.sys/l"),
        ({"links": {"sys/l": "a"}, "files": {"sys/l/x": ""}, "assumed": {}}, "sys/l/x"),
        ({"links": {"sys/a/file": "x"}}, "links"),
        ({"unreadable": ["../x"]}, "unreadable"),
        ({"unreadable": "sys/x"}, "unreadable"),
        ({"assumed": 1}, "assumed"),
        ({"assumed": {"files": {"sys/x": ""}}}, "why"),
        ({"assumed": {"why": "w", "files": {"sys/a/file": "other"}}}, "assumed.files.sys/a/file"),
        ({"assumed": {"why": "w", "links": {"sys/b/link": "../a/file"}}}, "assumed.links.sys/b/link"),
    ],
)
def test_a_bad_field_is_named(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    """Every wrong, unsafe or contradicting field is refused by its name, with the file's."""
    path = written(tmp_path / "bad.json", GOOD | change)
    with pytest.raises(InvalidField) as raised:
        load(path)
    assert raised.value.field == f"{path}: {field}"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_file_that_is_no_json_is_refused_with_its_path(tmp_path: Path, content: bytes) -> None:
    """Broken JSON, plain or compressed, and a broken or missing file say which file it was."""
    plain, packed, broken = tmp_path / "a.json", tmp_path / "a.json.xz", tmp_path / "b.json.xz"
    plain.write_bytes(content)
    packed.write_bytes(lzma.compress(content))
    broken.write_bytes(lzma.compress(content)[:-9])
    for path in (plain, packed, broken, tmp_path / "none.json", tmp_path):
        with pytest.raises(OutsideFault, match=str(path)):
            load(path)


@pytest.mark.parametrize("document", [[], 7, None, {}])
def test_other_json_is_no_machine_file(tmp_path: Path, document: Any) -> None:
    """JSON of another kind is refused by its missing format."""
    with pytest.raises(InvalidField, match="format"):
        load(written(tmp_path / "x.json", document))


def test_a_machine_is_found_by_name_or_path(tmp_path: Path) -> None:
    """Shipped names and files both work; anything else is answered with the names there are."""
    assert find("mi210").name == "mi210"
    assert find(str(written(tmp_path / "own.json", GOOD))).name == "made-up-small"
    with pytest.raises(InvalidField, match="rx7900xtx"):
        find("mi999")
    with pytest.raises(OutsideFault, match=r"gone\.json"):
        find(str(tmp_path / "gone.json"))


@pytest.mark.parametrize("name", names())
def test_shipped_machines_say_what_they_are(name: str) -> None:
    """Each is named as its file, real, with its source, and with a reason for whatever is assumed."""
    machine = find(name)
    assert (machine.name, machine.made_up) == (name, False)
    assert machine.description
    assert machine.source
    assert bool(machine.why) is bool(machine.assumed.files or machine.assumed.links)


def test_a_tree_is_laid_out_only_in_a_directory_of_its_own(tmp_path: Path) -> None:
    """A directory that holds something is refused before anything is written."""
    (tmp_path / "mine").write_text("x")
    with pytest.raises(OutsideFault, match="not empty"):
        materialise(find("r9700"), tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]


def test_unreadable_files_give_eperm_and_are_skipped(tmp_path: Path) -> None:
    """A machine with a masked node runs as the real one: the node is skipped, for root, too."""
    masked = f"{NODES}/2/properties"
    machine = replace(find("mi210"), unreadable=(masked,))
    materialise(machine, tmp_path)
    assert (tmp_path / masked).stat().st_mode & 0o777 == 0
    found = discover(SimulatedTree(tmp_path, machine))
    assert (len(found.devices), [skipped.kfd_node for skipped in found.skipped]) == (7, [2])


@pytest.mark.parametrize("start", ["", "sys/class/kfd/kfd", "sys/class/kfd/kfd/topology"])
def test_a_bare_topology_is_captured_wherever_the_copy_starts(tmp_path: Path, start: str) -> None:
    """A copy with only KFD's topology is enough, from /, from the directory above it or from itself."""
    machine = find("vega10")
    materialise(machine, tmp_path)
    assert capture(tmp_path / start).captured == machine.captured


def test_a_capture_holds_no_serial_number(tmp_path: Path, made_up: Any) -> None:
    """A captured file is meant to be sent to others."""
    made_up.card(1)
    made_up.drm(128, "0000:01:00.0", vendor="0x1002", serial_number="SECRET7")
    dump(capture(made_up.root), tmp_path / "captured.json")
    assert "SECRET7" not in (tmp_path / "captured.json").read_text()
    assert "SECRET7" in discover(made_up.tree()).devices[0].aliases


def test_other_vendors_are_not_captured(made_up: Any) -> None:
    """Only AMD's GPUs, and their partitions' platform devices, are taken."""
    made_up.card(1)
    made_up.drm(128, "0000:01:00.0", vendor="0x1002")
    made_up.drm(129, "0000:02:00.0", vendor="0x8086")
    made_up.device_link(130, "../../../devices/platform/amdgpu_xcp_1")
    made_up.device_link(131, "../../../devices/platform/vgem")
    links = capture(made_up.root).captured.links
    assert [path.split("/")[3] for path in links] == ["renderD128", "renderD130"]


def test_a_partition_s_nodes_are_captured_and_found(made_up: Any) -> None:
    """A partition has DRM nodes of its own, below its platform device: in the file, and on the device."""
    made_up.card(1, location_id=0xC101, drm_render_minor=130)
    made_up.device_link(130, "../../../devices/platform/amdgpu_xcp_1")
    made_up.file("sys/devices/platform/amdgpu_xcp_1/drm/card7/dev", "226:7\n")
    assert capture(made_up.root).captured.files["sys/devices/platform/amdgpu_xcp_1/drm/card7/dev"]
    assert discover(made_up.tree()).devices[0].card == "card7"


def test_a_copy_with_followed_links_still_tells_the_pci_address(made_up: Any) -> None:
    """`cp -rL` leaves no links: the PCI address then comes from the device's uevent file."""
    made_up.card(1, location_id=0)
    made_up.drm(128, "0000:01:00.0", vendor="0x1002", uevent="DRIVER=amdgpu\nPCI_SLOT_NAME=0000:01:00.0")
    link = made_up.root / "sys/class/drm/renderD128/device"
    target = link.resolve()
    link.unlink()
    shutil.move(target, link)
    assert discover(made_up.tree()).devices[0].key == "0000:01:00.0/0"
    captured = capture(made_up.root).captured
    assert captured.links == {"sys/class/drm/renderD128/device": "../../../bus/pci/devices/0000:01:00.0"}
    assert captured.files["sys/bus/pci/devices/0000:01:00.0/vendor"] == b"0x1002\n"


def test_a_masked_file_is_captured_as_unreadable(made_up: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that the capturing process may not read stays such a node in the machine file."""
    made_up.card(1)
    tree = made_up.tree(f"{NODES}/1/properties")
    monkeypatch.setattr("nodeagent.adapters.capture.SysTree", lambda root: tree)
    machine = capture(made_up.root)
    assert machine.unreadable == (f"{NODES}/1/properties",)
    assert f"{NODES}/1/gpu_id" in machine.captured.files


def test_a_tree_without_kfd_cannot_be_captured(tmp_path: Path) -> None:
    """The fault names the root and what was looked for."""
    with pytest.raises(OutsideFault, match="topology/nodes"):
        capture(tmp_path)
