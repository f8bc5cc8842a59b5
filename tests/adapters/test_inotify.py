"""Hearing of directories that are made, until too many are."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.adapters.inotify import Inotify, Made
from nodeagent.domain.errors import OutsideFault


@pytest.fixture
def inotify() -> Iterator[Inotify]:
    source = Inotify()
    source.open()
    yield source
    source.close()


def watch(source: Inotify, path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    source.watch(directory, str(path))
    os.close(directory)


def test_what_is_made_is_heard_by_name(inotify: Inotify, tmp_path: Path) -> None:
    """Of every directory that is watched, once however often it was asked for; nothing when nothing is."""
    other = tmp_path / "other"
    other.mkdir()
    for path in (tmp_path, other, tmp_path):
        watch(inotify, path)
    assert inotify.read() == Made()
    for name in ("job_1", "other/job_22", "other/" + "s" * 200):
        (tmp_path / name).mkdir()
    assert inotify.read() == Made(frozenset({"job_1", "job_22", "s" * 200}))
    assert inotify.read() == Made()


def test_the_descriptor_can_be_polled(tmp_path: Path) -> None:
    """It is readable when there is something to read."""
    source = Inotify()
    descriptor = source.open()
    watch(source, tmp_path)
    assert select.select([descriptor], [], [], 0)[0] == []
    (tmp_path / "job_1").mkdir()
    assert select.select([descriptor], [], [], 10)[0] == [descriptor]
    source.close()
    source.close()


def test_an_end_and_a_removal_are_no_news(inotify: Inotify, tmp_path: Path) -> None:
    """What goes is not told of, nor the end of what is watched; it may be made and watched anew."""
    scope = tmp_path / "scope"
    scope.mkdir()
    watch(inotify, scope)
    (scope / "job_1").mkdir()
    inotify.read()
    (scope / "job_1").rmdir()
    scope.rmdir()
    assert inotify.read() == Made()
    scope.mkdir()
    watch(inotify, scope)
    (scope / "job_1").mkdir()
    assert inotify.read().names == {"job_1"}


def test_too_much_is_told_as_lost(inotify: Inotify, tmp_path: Path) -> None:
    """The kernel's queue is bounded: behind what it held comes the word that there was more."""
    watch(inotify, tmp_path)
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(most + 10):
        directory = tmp_path / f"{number}"
        directory.mkdir()
        directory.rmdir()
    heard = Made()
    while not heard.lost:
        heard = inotify.read()
        assert heard != Made()


def test_a_closed_source_is_a_fault(tmp_path: Path) -> None:
    """Nothing will ever come of it; a watch is no fault, for looks go on."""
    source = Inotify()
    watch(source, tmp_path)
    with pytest.raises(OutsideFault, match="closed"):
        source.read()


def test_what_is_no_directory_is_refused(inotify: Inotify, tmp_path: Path) -> None:
    """With its path."""
    file = tmp_path / "file"
    file.touch()
    descriptor = os.open(file, os.O_RDONLY)
    with pytest.raises(OutsideFault, match="file"):
        inotify.watch(descriptor, str(file))
    os.close(descriptor)
