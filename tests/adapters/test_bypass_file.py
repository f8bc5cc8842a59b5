"""The bypass on record: believed only where root alone could have written it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.adapters.bypass_file import BypassFile
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.mode import Bypass

BYPASS = Bypass("0b5d6b0e-3b1c-4f5e-9d4a-111111111111", 160, 0, 1, "a bug")


@pytest.fixture
def file(tmp_path: Path) -> BypassFile:
    return BypassFile("gpulease", root=tmp_path / "run" / "bypass", owner=os.geteuid())


def test_what_is_written_is_read_and_removed(file: BypassFile) -> None:
    """For everybody to read, in a directory that everybody may enter; gone is gone."""
    assert file.read() is None
    assert not file.remove()
    old = os.umask(0o077)
    try:
        file.write(BYPASS)
    finally:
        os.umask(old)
    assert file.path.stat().st_mode & 0o777 == 0o644
    assert file.path.parent.stat().st_mode & 0o777 == 0o755
    assert file.read() == BYPASS
    assert list(file.path.parent.iterdir()) == [file.path]
    assert file.remove()
    assert file.read() is None


def test_what_others_could_have_written_is_not_believed(file: BypassFile, tmp_path: Path) -> None:
    """Nor a link, a FIFO (which is not waited for), half a file or a large one."""
    file.write(BYPASS)

    def refused(why: str = "") -> None:
        with pytest.raises(OutsideFault, match=why or "root's alone"):
            file.read()

    file.path.chmod(0o664)
    refused()
    file.path.chmod(0o644)
    file.path.parent.chmod(0o777)
    refused()
    file.path.parent.chmod(0o755)
    assert file.read() == BYPASS
    file.path.write_text(file.path.read_text()[:-3])
    refused("not as")
    file.path.write_bytes(b"boot_id=\xff" * 1000)
    refused("no bypass")
    file.path.rename(tmp_path / "elsewhere")
    file.path.symlink_to(tmp_path / "elsewhere")
    refused("no bypass")
    file.path.unlink()
    os.mkfifo(file.path)
    refused()
    stranger = BypassFile("gpulease", root=file.path.parent, owner=os.geteuid() + 1)
    file.path.unlink()
    file.write(BYPASS)
    with pytest.raises(OutsideFault, match="root's alone"):
        stranger.read()


def test_it_is_not_written_where_others_may(file: BypassFile) -> None:
    """A directory of somebody else's stays as it is."""
    file.path.parent.mkdir(parents=True)
    file.path.parent.chmod(0o777)
    with pytest.raises(OutsideFault):
        file.write(BYPASS)
