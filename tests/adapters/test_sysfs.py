"""Reading files that may be missing, masked, empty or garbled."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.adapters.sysfs import FILE_LIMIT, Problem, Properties, SysTree, Unread


@pytest.fixture
def tree(tmp_path: Path) -> SysTree:
    (tmp_path / "sys").mkdir()
    return SysTree(tmp_path)


def write(tree: SysTree, content: bytes, path: str = "sys/file") -> str:
    (tree.root / path).parent.mkdir(parents=True, exist_ok=True)
    (tree.root / path).write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, Problem.MISSING),
        (b"", Problem.EMPTY),
        (b" \n", Problem.EMPTY),
        (b"\xff\xfe", Problem.GARBLED),
        (b"12\x00", Problem.GARBLED),
        (b"1" * (FILE_LIMIT + 1), Problem.GARBLED),
        (b"0x12", Problem.GARBLED),
        (b"1_000", Problem.GARBLED),
        ("\u0661".encode(), Problem.GARBLED),
        (b"99999999999999999999", Problem.GARBLED),
    ],
)
def test_a_bad_file_says_what_is_wrong_and_where(
    tree: SysTree, content: bytes | None, problem: Problem
) -> None:
    """Missing, empty and garbled differ, and each reason names the file as the node knows it."""
    if content is not None:
        write(tree, content)
    found = tree.number("sys/file")
    assert isinstance(found, Unread)
    assert found.problem is problem
    assert found.reason.startswith("/sys/file: ")


@pytest.mark.parametrize("code", [errno.EPERM, errno.EACCES])
def test_a_denied_file_is_told_from_a_failing_one(
    tree: SysTree, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """EPERM and EACCES are denials that name themselves; any other error of the kernel is a failure."""
    monkeypatch.setattr(tree, "read_bytes", lambda path: (_ for _ in ()).throw(OSError(code, "no")))
    denied = tree.text("sys/file")
    assert isinstance(denied, Unread)
    assert (denied.problem, errno.errorcode[code] in denied.reason) == (Problem.DENIED, True)
    monkeypatch.setattr(tree, "read_bytes", lambda path: (_ for _ in ()).throw(OSError(errno.EIO, "bad")))
    failed = tree.text("sys/file")
    assert isinstance(failed, Unread)
    assert failed.problem is Problem.FAILED


def test_numbers_of_either_base_are_read(tree: SysTree) -> None:
    """Decimal may be negative; hexadecimal goes with and without 0x; white space around does not count."""
    assert tree.number(write(tree, b" -1\n")) == -1
    assert tree.hexadecimal(write(tree, b"0x1002\n")) == 0x1002
    assert tree.hexadecimal(write(tree, b"675bce773a2403eb")) == 0x675BCE773A2403EB


def test_properties_keep_good_lines_and_name_bad_ones(tree: SysTree) -> None:
    """One bad value does not spoil the file; a key that comes twice is bad, an unknown one is not."""
    path = write(tree, b"simd_count 416\ndomain x\nnew_key 7\nhive_id 1\nhive_id 2\nempty \n")
    found = tree.properties(path)
    assert isinstance(found, Properties)
    assert (found.values["simd_count"], found.values["new_key"]) == (416, 7)
    assert found.garbled == {"domain", "hive_id", "empty"}


def test_a_fifo_or_directory_is_never_opened(tree: SysTree) -> None:
    """A copied tree with a FIFO or a directory for a file gives a reason instead of hanging."""
    os.mkfifo(tree.root / "sys/file")
    (tree.root / "sys/folder").mkdir()
    assert isinstance(tree.text("sys/file"), Unread)
    assert isinstance(tree.text("sys/folder"), Unread)


def test_links_do_not_lead_out_of_a_copied_tree(tmp_path: Path) -> None:
    """A copied tree cannot make us read other files of this machine; links inside it work."""
    (tmp_path / "secret").write_text("7")
    tree = SysTree(tmp_path / "tree")
    write(tree, b"5", "sys/inside")
    (tree.root / "sys/in").symlink_to("inside")
    (tree.root / "sys/out").symlink_to(tmp_path / "secret")
    found = tree.number("sys/out")
    assert tree.number("sys/in") == 5
    assert isinstance(found, Unread)
    assert found.problem is Problem.FAILED


def test_entries_that_are_numbers_come_in_order(tree: SysTree) -> None:
    """Nodes are listed by number, not by spelling, and other names are left alone."""
    for name in ("10", "9", "0", "01", "x", "-1"):
        (tree.root / "sys/nodes" / name).mkdir(parents=True)
    assert tree.numbered("sys/nodes") == (0, 9, 10)
    assert tree.numbered("sys/none") == ()


@given(content=st.binary(max_size=64))
def test_no_content_raises(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Every reader gives a value or a reason for any bytes."""
    tree = SysTree(tmp_path_factory.mktemp("tree"))
    path = write(tree, content)
    assert isinstance(tree.text(path), str | Unread)
    assert isinstance(tree.number(path), int | Unread)
    assert isinstance(tree.hexadecimal(path), int | Unread)
    assert isinstance(tree.properties(path), Properties | Unread)


@pytest.mark.root
def test_a_second_user_is_denied_what_mode_0_hides() -> None:
    """A real user without rights gets `denied`, not an exception, for a file that root wrote with mode 0."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        tree = SysTree(Path(directory))
        (tree.root / write(tree, b"7")).chmod(0)
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            found = tree.number("sys/file")
            os.write(write_end, (found.problem if isinstance(found, Unread) else "read").encode())
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as pipe:
            said = pipe.read().decode()
        os.waitpid(child, 0)
    assert said == Problem.DENIED
