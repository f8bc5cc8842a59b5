"""The secret of the read-only listener: nobody else's to read, and long enough."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.adapters.token_file import read_token
from nodeagent.domain.errors import OutsideFault

TOKEN = "0123456789abcdef" * 4


def written(tmp_path: Path, text: str = TOKEN, mode: int = 0o600) -> Path:
    path = tmp_path / "token"
    path.write_text(text, encoding="latin-1")
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_token_is_read(tmp_path: Path, mode: int) -> None:
    """The token is what is in the file, without the line's end."""
    assert read_token(written(tmp_path, f"{TOKEN}\n", mode)) == TOKEN.encode()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610])
def test_a_token_that_others_can_read_is_none(tmp_path: Path, mode: int) -> None:
    """Any right of a group or of others on the file makes it no secret."""
    with pytest.raises(OutsideFault, match="chmod 0600"):
        read_token(written(tmp_path, mode=mode))


@pytest.mark.parametrize(
    "text", ["", "\n", "short", "a" * 31, TOKEN + "\n" + TOKEN, "geheim ist das nicht, ä" * 3]
)
def test_a_token_that_could_be_guessed_or_read_in_two_ways_is_refused(tmp_path: Path, text: str) -> None:
    """Fewer than 32 characters are under 128 bits, and what is no token of RFC 6750 cannot be sent."""
    with pytest.raises(OutsideFault, match="openssl rand"):
        read_token(written(tmp_path, text))


def test_a_link_a_fifo_and_an_absent_file_are_named(tmp_path: Path) -> None:
    """What is no regular file is refused at once, and the fault names the path."""
    link, fifo = tmp_path / "link", tmp_path / "fifo"
    link.symlink_to(written(tmp_path))
    os.mkfifo(fifo, 0o600)
    for path in (link, fifo, tmp_path / "none"):
        with pytest.raises(OutsideFault, match=str(path)):
            read_token(path)


@pytest.mark.root
def test_another_users_file_is_no_secret_of_roots(tmp_path: Path) -> None:
    """A file that a user owns is one that the user may change."""
    path = written(tmp_path)
    os.chown(path, 4242, 4242)
    with pytest.raises(OutsideFault, match="belongs to uid 4242"):
        read_token(path)
