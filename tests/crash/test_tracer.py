"""The tracer: it counts every state-changing call of every thread, and kills on the right side of it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.tracing import Kill, Refusal, Traced, Tracer, arm, build_tools, load_filter

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tools(tmp_path_factory.mktemp("tracer"))


@pytest.fixture
def tracer(tools: Path) -> Iterator[Tracer]:
    made = Tracer(tools)
    yield made
    made.close()


def traced(tracer: Tracer, kill: Kill | Refusal, act: Callable[[], None]) -> Traced:
    """Do *act* in a child that dies at *kill*, or lives and tells its count."""
    hold, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.read(hold, 1)
            load_filter(tracer.filter)
            arm(kill.n, kill.how)
            act()
            arm(0)
        finally:
            os._exit(0)
    tracer.seize(pid)
    os.write(go, b"!")
    os.close(hold)
    os.close(go)
    seen = tracer.traced()
    os.waitpid(pid, 0)
    return seen


def three_files(directory: Path) -> Callable[[], None]:
    """Three state-changing calls, and one that only reads."""

    def act() -> None:
        for name in "abc":
            (directory / name).mkdir()
        (directory / "a").stat()

    return act


def test_every_state_changing_call_is_counted(tracer: Tracer, tmp_path: Path) -> None:
    """A process that is not to die lives, and tells how many calls it made since the mark before."""
    assert traced(tracer, Kill(0, after=False), three_files(tmp_path)).counts == (0, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


@pytest.mark.parametrize(("after", "left"), [(False, ["a"]), (True, ["a", "b"])], ids=["before", "after"])
def test_it_dies_on_the_right_side_of_the_call(
    tracer: Tracer, tmp_path: Path, after: bool, left: list[str]
) -> None:
    """Killed before the second call that one never happens; killed after, it did."""
    assert traced(tracer, Kill(2, after), three_files(tmp_path)) == Traced((0,), "mkdir", (0,))
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_a_call_of_another_thread_counts(tracer: Tracer, tmp_path: Path) -> None:
    """Threads that the process starts are traced, and one of them can be its end."""

    def act() -> None:
        thread = threading.Thread(target=three_files(tmp_path))
        thread.start()
        thread.join()

    assert traced(tracer, Kill(3, after=False), act).killed == "mkdir"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize(("lasting", "failed"), [(False, "b"), (True, "bc")], ids=["one", "all from it on"])
def test_a_write_that_is_refused_is_not_done(
    tracer: Tracer, tmp_path: Path, lasting: bool, failed: str
) -> None:
    """It ends with EIO; the process goes on, and the file is as it was before."""
    files = [os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT) for name in "abc"]

    def act() -> None:
        for name, file in zip("abc", files, strict=True):
            try:
                os.pwrite(file, b"done", 0)
            except OSError as error:
                (tmp_path / f"{name}.{error.errno}").mkdir()

    seen = traced(tracer, Refusal(2, lasting), act)
    assert (seen.killed, seen.refused, seen.disk) == (None, ("pwrite64",), (0, 3))
    assert {path.name[0] for path in tmp_path.glob(f"*.{errno.EIO}")} == set(failed)
    assert {name for name in "abc" if not (tmp_path / name).read_bytes()} == set(failed)


def test_opening_to_read_does_not_count(tracer: Tracer, tmp_path: Path) -> None:
    """Of opens only those that may write count, of writes only those beyond stderr."""
    (tmp_path / "file").touch()

    def act() -> None:
        (tmp_path / "file").read_bytes()
        os.write(2, b"")
        (tmp_path / "file").write_bytes(b"one open, one write")

    assert traced(tracer, Kill(0, after=False), act).counts == (0, 2)


def test_what_was_synced_survives_and_nothing_else(tools: Path, tmp_path: Path) -> None:
    """What is kept: a file's content at its last sync, and the names at the last sync of the directory."""
    state, surviving = tmp_path / "state", tmp_path / "surviving"
    for directory in (state, surviving):
        directory.mkdir()

    def act() -> None:
        file = os.open(state / "file", os.O_WRONLY | os.O_CREAT)
        os.write(file, b"synced")
        os.fdatasync(file)
        os.write(file, b" and not")
        directory = os.open(state, os.O_RDONLY)
        os.fsync(directory)
        (state / "late").touch()

    tracer = Tracer(tools, state=state, surviving=surviving)
    traced(tracer, Kill(0, after=False), act)
    tracer.close()
    inode = (state / "file").stat().st_ino
    assert (surviving / "names").read_text() == f"{inode} file\n"
    assert (surviving / str(inode)).read_bytes() == b"synced"
