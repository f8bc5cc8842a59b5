"""The CDI files of leases: found by engines, read by root alone, gone with their leases."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from nodeagent.adapters.cdi_files import CdiFiles, digest
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.offer import GivenNode, Offer

pytestmark = pytest.mark.root
OFFER = Offer((GivenNode("/dev/kfd", "/dev/kfd"),), (), {"GPULEASE_ID": "7"})


@pytest.fixture
def files(tmp_path: Path) -> CdiFiles:
    return CdiFiles("gpulease", tmp_path / "cdi")


def test_a_device_has_a_name_that_nobody_guesses(files: CdiFiles) -> None:
    """128 random bits; what is told of it is the digest."""
    told = files.write(7, OFFER)
    device = files.device(7)
    assert device is not None
    kind, _, name = device.partition("=")
    assert (kind, len(name), int(name, 16).bit_length() > 64) == ("nodeagent.local/lease", 32, True)
    assert told == digest(name)
    files.write(8, OFFER)
    assert files.device(8) != device


def test_only_root_reads_the_name(files: CdiFiles) -> None:
    """Who could list the names could use any lease; the directory is open, for others' devices lie there."""
    before = os.umask(0o077)
    told = files.write(7, OFFER)
    os.umask(before)
    assert stat.S_IMODE(files.path(7).stat().st_mode) == 0o600
    assert stat.S_IMODE(files.path(7).parent.stat().st_mode) == 0o755
    files.path(7).chmod(0o644)
    with pytest.raises(OutsideFault, match="others may read"):
        files.verify(7, OFFER, told)


def test_written_again_it_keeps_its_name(files: CdiFiles) -> None:
    """After a crash between the file and the ledger; one that was spoiled is another device."""
    told = files.write(7, OFFER)
    assert files.write(7, OFFER) == told
    files.path(7).write_text("{")
    assert files.device(7) is None
    assert files.write(7, OFFER) != told


def test_what_reads_otherwise_is_a_fault(files: CdiFiles) -> None:
    """Another device's nodes, or another name, are not what was granted."""
    told = files.write(7, OFFER)
    files.verify(7, OFFER, told)
    with pytest.raises(OutsideFault, match="otherwise"):
        files.verify(7, Offer((GivenNode("/dev/dri", "/dev/dri"),)), told)
    with pytest.raises(OutsideFault, match="otherwise"):
        files.verify(7, OFFER, digest("1" * 32))


def test_a_removed_device_is_gone_and_again_is_success(files: CdiFiles) -> None:
    """A half made file of a crash goes, too; no engine reads that meanwhile."""
    files.write(7, OFFER)
    half = files.path(7).with_name(f"{files.path(7).name}.new")
    half.touch()
    assert files.leases() == {7}
    for _ in range(2):
        files.remove(7)
    assert files.leases() == frozenset()
    assert list(files.path(7).parent.iterdir()) == []
    assert half.suffix not in (".json", ".yaml")


def test_others_files_are_left_alone(files: CdiFiles) -> None:
    """Other vendors' and other agents' devices lie in the same directory."""
    files.write(7, OFFER)
    for name in ("amd.json", "nodeagent-gpulease_1-9.json", "nodeagent-gpulease-09.json"):
        files.path(7).with_name(name).write_text(json.dumps({}))
    assert files.leases() == {7}


def test_no_link_is_followed(files: CdiFiles, tmp_path: Path) -> None:
    """Neither to write the file nor to read it."""
    files.write(7, OFFER)
    other = tmp_path / "other"
    other.write_text("kept")
    files.remove(7)
    files.path(7).symlink_to(other)
    assert files.device(7) is None
    with pytest.raises(OutsideFault):
        files.write(7, OFFER)
    assert other.read_text() == "kept"


def test_a_directory_that_others_can_write_is_refused(files: CdiFiles) -> None:
    """They would put a device of their own making there, and the engine gives what it says."""
    files.write(7, OFFER)
    files.path(7).parent.chmod(0o777)
    with pytest.raises(OutsideFault, match="directory of root's"):
        files.write(8, OFFER)
