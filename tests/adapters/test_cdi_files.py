"""The CDI files of leases: found by engines, read by root alone, gone with their leases."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from nodeagent.adapters.cdi_files import CdiFiles
from nodeagent.domain.errors import OutsideFault

pytestmark = pytest.mark.root
NAME = "ab" * 16
GIVEN = {"env": ["GPULEASE_ID=7"]}


@pytest.fixture
def files(tmp_path: Path) -> CdiFiles:
    return CdiFiles("gpulease", tmp_path / "cdi")


def test_a_file_is_a_device_with_what_it_gives(files: CdiFiles) -> None:
    """Written again it says what it is to say now."""
    for given in ({}, GIVEN):
        files.write(7, NAME, given)
        (device,) = json.loads(files.path(7).read_bytes())["devices"]
        assert device == {"name": NAME, "containerEdits": given}


def test_only_root_reads_the_name(files: CdiFiles) -> None:
    """Who could list the names could use any lease; the directory is open, for others' devices lie there."""
    before = os.umask(0o077)
    files.write(7, NAME, GIVEN)
    os.umask(before)
    assert stat.S_IMODE(files.path(7).stat().st_mode) == 0o600
    assert stat.S_IMODE(files.path(7).parent.stat().st_mode) == 0o755


def test_a_removed_device_is_gone_and_again_is_success(files: CdiFiles) -> None:
    """A half made file of a crash goes, too; no engine reads that meanwhile."""
    files.write(7, NAME, GIVEN)
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
    files.write(7, NAME, GIVEN)
    for name in ("amd.json", "nodeagent-gpulease_1-9.json", "nodeagent-gpulease-09.json"):
        files.path(7).with_name(name).write_text(json.dumps({}))
    assert files.leases() == {7}


def test_no_link_is_followed(files: CdiFiles, tmp_path: Path) -> None:
    """A new file takes its place, and what it led to is as it was."""
    files.write(8, NAME, GIVEN)
    other = tmp_path / "other"
    other.write_text("kept")
    half = files.path(7).with_name(f"{files.path(7).name}.new")
    for link in (files.path(7), half):
        link.symlink_to(other)
    files.write(7, NAME, GIVEN)
    assert not files.path(7).is_symlink()
    assert other.read_text() == "kept"


def test_a_directory_that_others_can_write_is_refused(files: CdiFiles) -> None:
    """They would put a device of their own making there, and the engine gives what it says."""
    files.write(7, NAME, GIVEN)
    files.path(7).parent.chmod(0o777)
    with pytest.raises(OutsideFault, match="directory of root's"):
        files.write(8, NAME, GIVEN)
