"""Waking when a holder may have ended: never too late, never without end."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest

from nodeagent.adapters.processes import pidfd_open
from nodeagent.adapters.watch import Watcher
from nodeagent.domain.errors import OutsideFault


class Wakes:
    """Counts wakes and waits for them."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def reach(self, count: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.count >= count, timeout=20)


@pytest.fixture
def wakes() -> Wakes:
    """What was woken."""
    return Wakes()


@pytest.fixture
def watcher(wakes):
    """A running watcher."""
    watcher = Watcher(wakes)
    watcher.start()
    yield watcher
    watcher.stop()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def sleeper(children) -> tuple[int, int]:
    pid, _ = children.connect()
    pidfd = pidfd_open(pid)
    assert pidfd is not None
    return pid, pidfd


def test_the_end_of_a_process_wakes_once(watcher, wakes, children):
    """A process that ends wakes, and is then watched no longer; the given pidfd stays the caller's."""
    pid, pidfd = sleeper(children)
    watcher.add_process("7", pidfd)
    assert watcher.watched() == {"7"}
    assert wakes.count == 0
    children.end(pid)
    assert wakes.reach(1)
    other, other_pidfd = sleeper(children)
    watcher.add_process("8", other_pidfd)
    children.end(other)
    assert wakes.reach(2)
    watcher.stop()
    assert wakes.count == 2
    os.close(pidfd)
    os.close(other_pidfd)


def test_a_process_that_is_dead_already_wakes(watcher, wakes, children):
    """An end before the registration is not lost, however often it is registered."""
    pid, pidfd = sleeper(children)
    children.end(pid)
    watcher.add_process("7", pidfd)
    assert wakes.count == 1
    watcher.add_process("7", pidfd)
    assert wakes.count == 2
    assert watcher.watched() == frozenset()
    os.close(pidfd)


def test_adding_again_replaces(watcher, wakes, children):
    """A key is watched for what it was given last; what it had before wakes nobody."""
    first, first_pidfd = sleeper(children)
    second, second_pidfd = sleeper(children)
    before = open_descriptors()
    watcher.add_process("7", first_pidfd)
    watcher.add_process("7", second_pidfd)
    assert open_descriptors() == before + 1
    children.end(second)
    assert wakes.reach(1)
    children.end(first)
    watcher.stop()
    assert wakes.count == 1
    os.close(first_pidfd)
    os.close(second_pidfd)


def test_removing_is_harmless_at_any_time(watcher, wakes, children):
    """Unknown keys and keys removed twice are no fault, and a removed one wakes nobody."""
    pid, pidfd = sleeper(children)
    watcher.remove("never")
    watcher.add_process("7", pidfd)
    watcher.remove("7")
    watcher.remove("7")
    children.end(pid)
    watcher.stop()
    assert wakes.count == 0
    os.close(pidfd)


@pytest.mark.cgroup2
def test_a_cgroup_wakes_when_it_fills_and_when_it_empties(watcher, wakes, tree, children):
    """Both ways of cgroup.events wake; an empty one wakes at once."""
    ref = tree.create(7)
    pid, _ = children.connect()
    with tree.open(ref) as cgroup:
        watcher.add_cgroup("7", cgroup.fileno())
        assert wakes.count == 1
        cgroup.move(pid)
        assert wakes.reach(2)
        seen = wakes.count
        children.end(pid)
        assert wakes.reach(seen + 1)
        while cgroup.populated():
            pass
    assert watcher.watched() == {"7"}


@pytest.mark.cgroup2
def test_a_removed_cgroup_does_not_wake_without_end(watcher, wakes, tree):
    """A cgroup that is removed while it is watched wakes no more, and can be let go."""
    ref = tree.create(7)
    with tree.open(ref) as cgroup:
        watcher.add_cgroup("7", cgroup.fileno())
    tree.remove(ref)
    watcher.remove("7")
    assert watcher.watched() == frozenset()
    watcher.stop()
    assert wakes.count == 1


class News:
    """A source that can be read, and what its hearer said of each reading."""

    def __init__(self, *answers: bool | None) -> None:
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.answers = list(answers)
        self.heard = threading.Semaphore(0)

    def hear(self) -> bool | None:
        answer = self.answers.pop(0)
        with contextlib.suppress(BlockingIOError):
            if answer is not None:
                os.read(self.reader, 1)
        self.heard.release()
        return answer

    def tell(self) -> None:
        os.write(self.writer, b"x")

    def wait(self) -> None:
        assert self.heard.acquire(timeout=20)

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


def test_a_source_wakes_for_what_concerns_somebody(watcher, wakes):
    """News are heard at once and on every event; whether they wake is the hearer's to say."""
    news = News(False, False, True)
    watcher.add_source("news", news.reader, news.hear)
    news.wait()
    news.tell()
    news.wait()
    assert wakes.count == 0
    news.tell()
    assert wakes.reach(1)
    assert watcher.watched() == {"news"}
    watcher.stop()
    assert wakes.count == 1
    news.close()


def test_a_source_that_ended_wakes_once_and_is_left(watcher, wakes):
    """One that can be read for ever, and gives nothing, does not keep the thread busy."""
    news = News(False, None)
    watcher.add_source("news", news.reader, news.hear)
    news.tell()
    assert wakes.reach(1)
    watcher.stop()
    assert wakes.count == 1
    assert watcher.watched() == frozenset()
    news.close()


def test_a_file_that_gives_no_events_is_a_fault(watcher, tmp_path):
    """A plain directory in the place of a cgroup is told, and nothing is watched."""
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OutsideFault, match="does not exist"):
            watcher.add_cgroup("7", directory)
        (tmp_path / "cgroup.events").write_text("populated 1\n")
        with pytest.raises(OutsideFault, match="no events"):
            watcher.add_cgroup("7", directory)
    finally:
        os.close(directory)
    assert watcher.watched() == frozenset()


def test_stopping_gives_every_descriptor_back(wakes, children):
    """Start and stop leave nothing open; stop interrupts the wait and may come twice."""
    _, pidfd = sleeper(children)
    before = open_descriptors()
    watcher = Watcher(wakes)
    watcher.stop()
    watcher.start()
    assert watcher.running()
    watcher.add_process("7", pidfd)
    watcher.stop()
    watcher.stop()
    assert not watcher.running()
    assert open_descriptors() == before
    with pytest.raises(OutsideFault, match="not running"):
        watcher.add_process("7", pidfd)
    os.close(pidfd)
