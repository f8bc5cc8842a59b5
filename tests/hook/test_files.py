"""The agent's side of the two files: what it prepares, reads and mends; what it does without a library."""

from __future__ import annotations

import os
import re
import shutil
import stat
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.adapters.hook_files import LIBRARY, HookFiles
from nodeagent.adapters.hook_format import (
    MAX_DEVICES,
    SLOTS,
    HookDevice,
    limits_bytes,
    slot_lock,
    usage_bytes,
    usage_size,
)
from nodeagent.adapters.hook_space import READY
from nodeagent.domain.cuset import CuSet
from nodeagent.domain.errors import OutsideFault
from nodeagent.hook import build

from .conftest import LEASE, MIB, Node

pytestmark = pytest.mark.hook

USER = 4321
ONE = HookDevice(0x1000, 128, MIB, 104, 1, CuSet.of(range(16)))
SOURCES = LIBRARY.parent


def test_both_sides_have_the_same_layout() -> None:
    """Sizes and numbers of format.h are those that the agent writes."""
    text = (SOURCES / "format.h").read_text(encoding="utf-8")
    defined = dict(re.findall(r"#define (\w+) (\d+|\"\w+\")", text))
    assert (int(defined["SLOTS"]), int(defined["MAX_DEVICES"])) == (SLOTS, MAX_DEVICES)
    raw = limits_bytes(LEASE, [ONE, ONE], "/u", strict=True)
    assert (raw[:8].decode(), len(raw)) == (defined["LIMITS_MAGIC"].strip('"'), 168 + 2 * 160)
    assert struct.unpack_from("<IIQIIII", raw, 8) == (1, len(raw), LEASE, 1, 2, SLOTS, 0)
    assert struct.unpack_from("<IIQIIII", raw, 168) == (0x1000, 128, MIB, 104, 1, 128, 0)
    for level in (0, 7):  # plus 1: what older agents wrote, 0, leaves priorities as they are asked
        raw = limits_bytes(LEASE, [replace(ONE, queue_level=level)], "/u", strict=True)
        assert struct.unpack_from("<I", raw, 168 + 28) == (level + 1,)
    assert usage_bytes(LEASE, 2)[:8].decode() == defined["USAGE_MAGIC"].strip('"')
    assert len(usage_bytes(LEASE, 2)) == usage_size(2) == 4096 + 2 * SLOTS * 8
    assert slot_lock(3) == (1 << 40) + 4


def test_removal_takes_half_made_files_along(node: Node) -> None:
    """What a crash left of the making goes with the lease, and so does its directory."""
    node.lease(MIB, uid=USER)
    limits, usage = node.files.limits_path(LEASE), node.usage
    halves = [path.with_name(f"{path.name}.new") for path in (limits, usage)]
    for half in halves:
        half.touch()
    node.files.remove(LEASE)
    assert not [path for path in (*halves, limits, usage, limits.parent) if path.exists()]


def test_a_half_made_file_makes_its_lease_known(node: Node) -> None:
    """One that is all a crash left of a lease, which the ledger has lost, is found and goes."""
    node.lease(MIB, uid=USER)
    half = node.usage.with_name(f"{node.usage.name}.new")
    node.files.remove(LEASE)
    half.touch()
    assert LEASE in node.files.leases()
    node.files.remove(LEASE)
    assert not half.exists()


def test_the_files_are_roots_and_the_holders(node: Node) -> None:
    """Limits are root's and closed to writing; usage is the holder's alone; directories are root's."""
    node.lease(MIB, uid=USER)
    limits, usage = node.files.limits_path(LEASE).stat(), node.usage.stat()
    assert (limits.st_uid, stat.S_IMODE(limits.st_mode)) == (0, 0o444)
    assert (usage.st_uid, stat.S_IMODE(usage.st_mode)) == (USER, 0o600)
    for directory in (node.usage.parent, node.files.limits_path(LEASE).parent):
        assert (directory.stat().st_uid, stat.S_IMODE(directory.stat().st_mode)) == (0, 0o711)


def mounts_below(directory: Path) -> list[list[str]]:
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    return [words for line in lines if (words := line.split())[4].startswith(f"{directory}/")]


def test_usage_files_lie_on_small_file_systems_of_their_own(node: Node) -> None:
    """They are bounded, nosuid, nodev and noexec; another agent object finds them again (threat 13)."""
    again = HookFiles("gpulease", root=node.directory / "hook", library=node.library)
    again.prepare(9, 0, [ONE], strict=True)
    spaces = mounts_below(node.directory / "hook/usage")
    assert len(spaces) == READY
    for words in spaces:
        assert {"nosuid", "nodev", "noexec"} <= set(words[5].split(","))
        assert os.statvfs(words[4]).f_blocks * os.statvfs(words[4]).f_frsize <= 16 * MIB
    node.files.remove(9)


def test_each_user_has_a_file_system_for_itself(node: Node) -> None:
    """Leases of one uid lie together, those of others elsewhere; there are more when more users come."""
    users = [USER + number for number in range(READY + 2)]
    leases = {100 * turn + uid: uid for turn in (1, 2) for uid in users}
    for lease, uid in leases.items():
        node.files.prepare(lease, uid, [ONE], strict=True)
    places = {lease: node.files.usage_path(lease).parent for lease in leases}
    assert len(set(places.values())) == len(users)
    assert all(places[100 + uid] == places[200 + uid] for uid in users)
    for lease in leases:
        node.files.remove(lease)
    node.files.leave()
    assert mounts_below(node.directory / "hook/usage") == []


@pytest.mark.root
@pytest.mark.way_out(
    "filling the file system of the usage files, also after the lease's end",
    tier="hook",
    outcome="each user has one for itself: others' leases are granted",
)
def test_a_file_that_grows_without_a_name_stops_nobody_else(node: Node) -> None:
    """Who keeps its usage file open beyond its lease fills a file system, and nobody else's."""
    node.lease(10 * MIB, uid=USER)
    program = node.start(user=USER)
    program(f"kept.append(os.open({str(node.usage)!r}, os.O_RDWR))")
    full = node.usage.parent
    node.files.remove(LEASE)
    assert program("fill(kept[0])") == "ENOSPC"
    node.files.prepare(8, USER + 1, [ONE], strict=True)
    assert node.files.usage_path(8).parent != full
    with pytest.raises(OutsideFault, match="were made to grow"):
        node.files.prepare(9, USER, [ONE], strict=True)
    program.close()
    node.files.prepare(9, USER + 2, [ONE], strict=True)
    assert node.files.usage_path(9).parent == full
    for lease in (8, 9):
        node.files.remove(lease)


def mend(node: Node, *, uid: int = 0) -> None:
    """What the agent does to a live lease's files at each look: read them back, and else prepare again."""
    with pytest.raises(OutsideFault, match=str(node.usage)):
        node.files.verify(LEASE, uid, node.devices, strict=True)
    node.files.prepare(LEASE, uid, node.devices, strict=True)
    node.files.verify(LEASE, uid, node.devices, strict=True)


def test_a_grown_or_cut_file_is_seen_and_put_back(node: Node) -> None:
    """What a holder made grow, or cut, is brought back to its size; the lease is then served again."""
    node.lease(10 * MIB, uid=USER)
    program = node.start(user=USER)
    program("alloc(4 << 20)")
    for size in (1 << 20, 8192 + 8, 4096, 0):
        assert program(f"os.truncate({str(node.usage)!r}, {size})") is None
        assert program("alloc(4096)") == "ENOMEM"
        mend(node, uid=USER)
        handle = program("alloc(4096)")
        assert program("alloc(8 << 20)") == "ENOMEM"
        program(f"free({handle})")
    assert node.start(user=USER)("alloc(7 << 20)") == "ENOMEM"


@pytest.mark.parametrize(
    "act", ["os.chmod({0!r}, 0)", "os.chmod({0!r}, 0o666)", "open({0!r}, 'r+').write('not GPUUSAGE')"]
)
def test_mode_and_header_are_put_back(node: Node, act: str) -> None:
    """Nobody else comes to write the file, and a new process finds its header; what is charged stays."""
    node.lease(10 * MIB, uid=USER)
    program = node.start(user=USER)
    program("alloc(4 << 20)")
    program(act.format(str(node.usage)))
    mend(node, uid=USER)
    assert stat.S_IMODE(node.usage.stat().st_mode) == 0o600
    other = node.start(user=USER)
    assert other("alloc(7 << 20)") == "ENOMEM"
    assert other("alloc(6 << 20)") == 1
    assert node.charged() == 10 * MIB


def test_missing_and_changed_files_are_made_again(node: Node) -> None:
    """Limits that root spoiled or removed, or made writable, and a removed usage file."""
    node.lease(10 * MIB)
    limits = node.files.limits_path(LEASE)
    right = limits.read_bytes()
    for spoil in (limits.unlink, lambda: limits.write_bytes(b""), lambda: limits.chmod(0o666)):
        spoil()
        with pytest.raises(OutsideFault, match=str(limits)):
            node.files.verify(LEASE, 0, node.devices, strict=True)
        node.files.prepare(LEASE, 0, node.devices, strict=True)
        assert (limits.read_bytes(), stat.S_IMODE(limits.stat().st_mode)) == (right, 0o444)
    node.usage.unlink()
    mend(node)
    assert node.start()("alloc(10 << 20)") == 1


def test_a_full_file_system_stops_nobody_who_is_in(node: Node) -> None:
    """Space for a lease's counts is set aside at first: another lease of that user takes none of it."""
    node.lease(10 * MIB, uid=USER)
    node.files.prepare(8, USER, [ONE], strict=True)
    greedy = node.files.usage_path(8)
    try:
        with greedy.open("r+b") as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(bytes(1 << 20))
    except OSError:
        pass  # closing flushes what had no room
    program = node.start()
    assert program("alloc(10 << 20)") == 1
    assert node.charged() == 10 * MIB
    node.files.prepare(8, USER, [ONE], strict=True)
    assert greedy.stat().st_size == usage_size(1)
    node.files.remove(8)


def test_only_the_living_are_counted(node: Node) -> None:
    """The agent sees at once that a process is gone, though nobody has cleared its entry."""
    node.lease(10 * MIB)
    one, other = node.start(), node.start()
    one("alloc(4 << 20)")
    other("alloc(2 << 20)")
    one.kill()
    assert node.charged() == 2 * MIB


def test_a_pipe_in_its_place_is_not_waited_for(node: Node) -> None:
    """Reading answers at once with a fault that names the path (threat 12)."""
    node.lease(10 * MIB)
    node.usage.unlink()
    os.mkfifo(node.usage)
    with pytest.raises(OutsideFault, match=str(node.usage)):
        node.files.usage(LEASE, 1)
    mend(node)
    assert stat.S_ISREG(node.usage.stat().st_mode)


def test_preparing_again_clears_nothing(node: Node) -> None:
    """A repeated preparation, as after a restart, keeps what is charged."""
    node.lease(10 * MIB)
    program = node.start()
    program("alloc(4 << 20)")
    node.files.prepare(LEASE, 0, node.devices, strict=True)
    assert node.charged() == 4 * MIB
    assert program("alloc(7 << 20)") == "ENOMEM"


@pytest.mark.parametrize("name", ["my env", "a:b", "$LIB"])
def test_a_path_that_ld_preload_would_split_is_not_used(node: Node, name: str) -> None:
    """A library at such a path would not be loaded, and the lease be held by nothing: a copy of it is."""
    odd = node.directory / name / node.library.name
    odd.parent.mkdir()
    shutil.copy(node.library, odd)
    root = node.directory / "hook"
    assert HookFiles("gpulease", root=root, library=node.library).library() == node.library
    assert HookFiles("gpulease", root=root, library=odd).library().parent == root / "lib"


def test_without_a_library_the_reason_is_the_builds(tmp_path: Path) -> None:
    """A package that was built without a compiler says so, as it was when it was last looked for."""
    files = HookFiles("gpulease", root=tmp_path / "hook", library=tmp_path / "libgpulease.so")
    assert "compiler" in (files.unavailable() or "")
    (tmp_path / build.REASON).write_text("made for another world\n", encoding="utf-8")
    assert "compiler" in (files.unavailable() or "")
    files.probe()
    assert "made for another world" in (files.unavailable() or "")


def test_building_without_a_compiler_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build leaves the reason instead of the library, until there is a compiler."""
    monkeypatch.setenv("CC", "/nonexistent/cc")
    assert "no C compiler" in (build.compile_all(SOURCES, tmp_path) or "")
    assert [path.name for path in tmp_path.iterdir()] == [build.REASON]
    monkeypatch.delenv("CC")
    if not build.compiler():
        pytest.skip("needs a C compiler")
    assert build.compile_all(SOURCES, tmp_path) is None
    assert {path.name for path in tmp_path.iterdir()} == {target.name for target in build.TARGETS}


def test_another_architecture_has_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names the machine."""
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert "riscv64" in (build.unbuildable() or "")
    assert "riscv64" in (HookFiles("gpulease").unavailable() or "")
