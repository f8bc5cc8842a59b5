"""Limits on cgroups outside leases: written once, on record, put back, taken back."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from nodeagent.adapters.cgroup import OpenCgroup
from nodeagent.adapters.closure import RECORD, OutsideCgroups
from nodeagent.adapters.dmem import DmemController
from nodeagent.domain.errors import OutsideFault

A, B = "drm/0000:c1:00.0/vram", "drm/0000:c2:00.0/vram"
NOTHING = {A: 0, B: 0}


class Kernel:
    """Takes writes to dmem.max as dmem.c does, or drops them as it does up to 7.2."""

    def __init__(self) -> None:
        self.drops = False
        self.writes = 0

    def __call__(self, cgroup: OpenCgroup, name: str, text: str) -> None:
        self.writes += 1
        lines = dict(line.split() for line in (cgroup.read(name) or "").splitlines())
        region, value = text.split()
        if region not in lines:
            raise OSError(errno.EINVAL, "Invalid argument")
        if not self.drops:
            lines[region] = value
            cgroup.write(name, "".join(f"{at} {held}\n" for at, held in lines.items()))


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def node(plain):
    """A node with two regions and two cgroups outside leases."""
    plain.cgroup("/", cgroup__controllers="dmem\n", dmem__capacity=f"{A} 64\n{B} 64\n")
    plain.cgroup("/user.slice", dmem__max=f"{A} max\n{B} 40\n", cgroup__procs="")
    plain.cgroup("/system.slice", dmem__max=f"{A} max\n{B} max\n", cgroup__procs="17\n")
    return plain


@pytest.fixture
def make(node, kernel: Kernel, tmp_path_factory: pytest.TempPathFactory):
    """Make the adapter anew over the same record, as a start of the agent does."""
    directory = tmp_path_factory.mktemp("state")

    def made(boot_id: str = "boot", proc: Path = Path("/proc")) -> OutsideCgroups:
        return OutsideCgroups(
            node.tree, DmemController(node.tree, write=kernel), directory, boot_id, proc=proc
        )

    made.record = directory / RECORD
    return made


def text(node, path: str) -> str:
    return (node.root / path / "dmem.max").read_text()


def test_a_cap_is_written_where_it_differs_and_only_there(node, kernel: Kernel, make) -> None:
    """A second look at what is as it should be writes nothing."""
    outside = make()
    assert outside.cap("/user.slice", NOTHING) == outside.cap("/user.slice", NOTHING)
    assert text(node, "user.slice") == f"{A} 0\n{B} 0\n"
    assert kernel.writes == 2


def test_what_somebody_changed_is_put_back_and_told(node, make) -> None:
    """Only a limit that had been written before counts as changed."""
    outside = make()
    assert outside.cap("/user.slice", NOTHING).restored == ()
    node.cgroup("/user.slice", dmem__max=f"{A} max\n{B} 0\n")
    assert outside.cap("/user.slice", NOTHING).restored == (A,)
    assert text(node, "user.slice") == f"{A} 0\n{B} 0\n"


def test_a_limit_that_the_kernel_dropped_is_told_by_region(kernel: Kernel, make) -> None:
    """Up to Linux 7.2 what is in use outside cannot be capped, and the closure is not complete."""
    kernel.drops = True
    failed = make().cap("/user.slice", NOTHING).failed
    assert failed.keys() == {A, B}
    assert "is in force" in failed[A]


def test_a_cgroup_that_is_gone_needs_no_cap(make) -> None:
    """Between a look and a write it may vanish."""
    assert make().cap("/machine.slice", NOTHING).failed == {}


def test_release_gives_back_what_was_there_before_also_after_a_start(node, make) -> None:
    """The record outlives the agent, and the site's own limit comes back."""
    make().cap("/user.slice", NOTHING)
    again = make()
    assert again.regions() == {A, B}
    again.release()
    assert text(node, "user.slice") == f"{A} max\n{B} 40\n"
    assert make().regions() == frozenset()


def test_release_keeps_what_is_still_wanted(node, make) -> None:
    """A cgroup that is let through is opened, and no other."""
    outside = make()
    outside.cap("/user.slice", NOTHING)
    outside.cap("/system.slice", NOTHING)
    outside.release([("/user.slice", A), ("/user.slice", B)])
    assert text(node, "user.slice") == f"{A} 0\n{B} 0\n"
    assert text(node, "system.slice") == f"{A} max\n{B} max\n"


def test_release_leaves_what_others_wrote_since(node, make) -> None:
    """Another value than the agent's own is not the agent's to take back."""
    outside = make()
    outside.cap("/user.slice", NOTHING)
    node.cgroup("/user.slice", dmem__max=f"{A} 7\n{B} 0\n")
    outside.release()
    assert text(node, "user.slice") == f"{A} 7\n{B} 40\n"


def test_a_record_of_an_older_boot_is_none(node, make) -> None:
    """Limits do not outlive a boot, and inodes then mean other cgroups."""
    make().cap("/user.slice", NOTHING)
    make("next boot").release()
    assert text(node, "user.slice") == f"{A} 0\n{B} 0\n"


def test_a_garbled_record_is_named(make) -> None:
    """What cannot be read is not guessed."""
    make.record.write_text(json.dumps({"boot_id": "boot", "capped": [{"path": "/"}]}))
    with pytest.raises(OutsideFault, match="no record of the closure"):
        make().regions()


def test_a_cgroup_with_processes_of_its_own_or_of_a_user_is_held_as_one(node, make) -> None:
    """Its children can have no limits, or their files are the user's to write."""
    outside = make()
    assert not outside.whole("/user.slice")
    assert outside.whole("/system.slice")
    os.chown(node.root / "user.slice", 1000, -1)
    assert outside.whole("/user.slice")
    assert outside.whole("/gone")


def test_processes_in_the_root_cgroup_are_told_and_kernel_threads_are_not(node, make, tmp_path) -> None:
    """No limit reaches them."""
    for pid, flags in ((2, 0x00200040), (77, 0x400100)):
        directory = tmp_path / "proc" / str(pid)
        directory.mkdir(parents=True)
        (directory / "stat").write_text(f"{pid} (a) b) S 0 0 0 0 -1 {flags} 0\n")
    node.cgroup("/", cgroup__procs="2\n77\n99\n")
    assert make(proc=tmp_path / "proc").strays() == (77,)
