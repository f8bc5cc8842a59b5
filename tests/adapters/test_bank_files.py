"""Shrunken copies of a node's memory banks."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from nodeagent.adapters.bank_files import BankFiles
from nodeagent.adapters.sysfs import SysTree
from nodeagent.domain.errors import OutsideFault

pytestmark = pytest.mark.root
GIB = 1 << 30
KERNELS = "heap_type 1\nsize_in_bytes 68719476736\nflags 0\nwidth 4096\nmem_clk_max 1600\n"


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    path = tmp_path / "tree/sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties"
    path.parent.mkdir(parents=True)
    path.write_text(KERNELS)
    return path


@pytest.fixture
def files(tmp_path: Path, bank: Path) -> BankFiles:
    return BankFiles("gpulease", SysTree(tmp_path / "tree"), root=tmp_path / "banks")


def test_a_copy_says_what_the_kernel_says_but_for_the_size(files: BankFiles) -> None:
    """Readable by whoever a container runs as."""
    files.prepare(7, {1: 8 * GIB})
    copy = files.path(7, 1) / "0/properties"
    assert copy.read_text() == KERNELS.replace("68719476736", str(8 * GIB))
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (copy, copy.parent, files.path(7, 1))]
    assert modes == [0o444, 0o755, 0o755]
    files.verify(7, {1: 8 * GIB})


def test_prepared_again_a_copy_stays_the_same_file(files: BankFiles) -> None:
    """A container has it mounted; one that reads otherwise is a fault, and put right."""
    files.prepare(7, {1: GIB})
    copy = files.path(7, 1) / "0/properties"
    first = copy.stat().st_ino
    files.prepare(7, {1: GIB})
    assert copy.stat().st_ino == first
    copy.write_text(KERNELS)
    with pytest.raises(OutsideFault, match="otherwise"):
        files.verify(7, {1: GIB})
    files.prepare(7, {1: GIB})
    files.verify(7, {1: GIB})


def test_an_unreadable_bank_is_a_fault(files: BankFiles, bank: Path) -> None:
    """No container is shown a bank without a size."""
    bank.write_text("")
    with pytest.raises(OutsideFault, match="is empty"):
        files.prepare(7, {1: GIB})


def test_copies_go_with_their_lease(files: BankFiles) -> None:
    """And the directories with the last of them."""
    files.prepare(7, {1: GIB})
    files.prepare(8, {1: GIB})
    assert files.leases() == {7, 8}
    for _ in range(2):
        files.remove(7)
    files.leave()
    assert files.leases() == {8}
    files.remove(8)
    files.leave()
    assert not files.path(8, 1).parents[2].exists()
