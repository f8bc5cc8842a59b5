"""The files that a lost ledger is rebuilt from: root's alone, whole or not there, and read with suspicion."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from nodeagent.adapters.sidecar_files import MOST_BYTES, SidecarFiles
from nodeagent.domain.errors import OutsideFault

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the directory is root's")


@pytest.fixture
def files(tmp_path: Path) -> SidecarFiles:
    return SidecarFiles("gpulease_test", root=tmp_path / "run" / "leases")


def test_what_was_written_is_read(files: SidecarFiles) -> None:
    """Replaced by a later one; each lease its own; gone when it is removed, twice too."""
    files.write(7, {"a": 1})
    files.write(8, {})
    files.write(7, {"a": "\udcff"})
    assert files.leases() == {7, 8}
    assert files.read(7) == {"a": "\udcff"}
    assert files.remove(7)
    assert not files.remove(7)
    assert files.leases() == {8}
    with pytest.raises(FileNotFoundError):
        files.read(7)


def test_nobody_else_can_see_it(files: SidecarFiles) -> None:
    """Neither the file nor the directories, whatever the umask."""
    umask = os.umask(0)
    try:
        files.write(7, {})
    finally:
        os.umask(umask)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (files.path(7), *files.path(7).parents[:2])]
    assert modes == [0o600, 0o700, 0o700]


def test_a_directory_that_others_can_enter_is_not_used(files: SidecarFiles) -> None:
    """They could have put something there."""
    files.write(7, {})
    files.path(7).parent.chmod(0o755)
    with pytest.raises(OutsideFault, match="nobody else can enter"):
        files.write(7, {})


def test_only_names_of_leases_count(files: SidecarFiles) -> None:
    """Not what a death left half written, and nothing else that lies there."""
    files.write(7, {})
    for name in ("8.new", "0.json", "07.json", "x.json", "9.json.bak"):
        (files.path(7).parent / name).touch()
    assert files.leases() == {7}


def test_a_file_that_is_not_the_agents_own_is_refused(files: SidecarFiles) -> None:
    """A link, a pipe that nobody writes to, another user's, one without end."""
    files.write(7, {})
    files.path(8).symlink_to("/etc/passwd")
    os.mkfifo(files.path(9))
    files.write(10, {})
    os.chown(files.path(10), 54_321, -1)
    files.write(11, {})
    os.truncate(files.path(11), MOST_BYTES + 1)
    for lease in (8, 9, 10, 11):
        with pytest.raises(OutsideFault, match=str(files.path(lease))):
            files.read(lease)


def test_the_directory_goes_when_no_lease_needs_it(files: SidecarFiles, tmp_path: Path) -> None:
    """Not under another instance's."""
    other = SidecarFiles("gpulease_other", root=tmp_path / "run" / "leases")
    files.write(7, {})
    other.write(7, {})
    files.leave()
    assert files.leases() == {7}
    files.remove(7)
    files.leave()
    assert not files.path(7).parent.exists()
    assert other.leases() == {7}
    other.remove(7)
    other.leave()
    assert not (tmp_path / "run").exists()
