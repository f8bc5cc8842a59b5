"""Real peers, of any uid, and a real cgroup subtree of one test."""

from __future__ import annotations

import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nodeagent.adapters.acl import DeviceNode
from nodeagent.adapters.cgroup import CgroupRef, CgroupTree, OpenCgroup, nest_below
from nodeagent.adapters.cgroup_mount import find_mount

Body = Callable[[socket.socket], None]


def until_closed(connection: socket.socket) -> None:
    """Live until the test hangs up, answering what it says."""
    while said := connection.recv(64):
        connection.send(said)


@dataclass
class Children:
    """Forked children that connect to the test. Forked, not executed: any uid can then run them anywhere."""

    started: dict[int, socket.socket | None] = field(default_factory=dict)

    def connect(
        self,
        body: Body = until_closed,
        *,
        uid: int | None = None,
        gid: int | None = None,
        groups: tuple[int, ...] = (),
        saved_uid: int | None = None,
        before: Callable[[], None] | None = None,
    ) -> tuple[int, socket.socket]:
        """Start a child that connects as *uid* and then does *body*; its pid and the test's end.

        With *saved_uid* 0 it may become root again, as one that executes a setuid program does.
        """
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"\0nodeagent-test-{secrets.token_hex(8)}")
        listener.listen()
        listener.settimeout(20)

        def child() -> None:
            if before is not None:
                before()
            if uid is not None:
                os.setgroups(groups)
                os.setresgid(*(gid or uid,) * 3)
                os.setresuid(uid, uid, uid if saved_uid is None else saved_uid)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(listener.getsockname())
                connection.recv(1)  # the test has accepted
                body(connection)

        pid = self.fork(child)
        with listener:
            connection, _ = listener.accept()
        connection.settimeout(20)
        connection.send(b"!")
        self.started[pid] = connection
        return pid, connection

    def fork(self, child: Callable[[], None]) -> int:
        """Run *child* in a child process; its pid."""
        pid = os.fork()
        if pid == 0:
            try:
                child()
                os._exit(0)
            except BaseException:
                os._exit(1)
        self.started[pid] = None
        return pid

    def answers(self, pid: int) -> bool:
        """Whether the child *pid* still runs: one that has a SIGKILL on its way says nothing more."""
        connection = self.started[pid]
        assert connection is not None
        try:
            connection.send(b"?")
            return connection.recv(1) == b"?"
        except OSError:
            return False

    def end(self, pid: int) -> None:
        """Kill and reap the child *pid*."""
        connection = self.started.pop(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if connection is not None:
            connection.close()


@pytest.fixture
def children() -> Iterator[Children]:
    """Start children; all are ended after the test."""
    started = Children()
    yield started
    for pid in list(started.started):
        started.end(pid)


@pytest.fixture
def make_tree() -> Iterator[Callable[..., CgroupTree]]:
    """Make `CgroupTree`s on the real mount, each of an instance of its own, removed after the test."""
    mount = find_mount()
    assert mount is not None
    made: list[CgroupTree] = []

    def make(**options: bool) -> CgroupTree:
        made.append(CgroupTree(mount, f"gpulease_test{secrets.token_hex(6)}.slice", **options))
        assert made[-1].writable() is None
        return made[-1]

    yield make
    for tree in made:
        _remove(tree, tree.instance)


def _remove(tree: CgroupTree, path: str) -> None:
    ref = tree.resolve(path)
    if ref is None:
        return
    with tree.open(ref) as cgroup:
        cgroup.kill()
        while cgroup.populated():
            pass
        cgroup.remove()


@pytest.fixture
def tree(make_tree: Callable[..., CgroupTree]) -> CgroupTree:
    """One `CgroupTree` on the real mount."""
    return make_tree()


@pytest.fixture
def lease_cgroup(tree: CgroupTree) -> Iterator[OpenCgroup]:
    """The open cgroup of lease 7, where a process of the test itself may be moved."""
    parent = nest_below(tree.cgroup_of(os.getpid()))
    with tree.open(tree.create(7, parent)) as cgroup:
        yield cgroup
    _remove(tree, cgroup.path)


class PlainTree:
    """A directory tree that imitates a cgroup2 mount, for what this kernel does not offer."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "cgroup.procs").write_text("")
        self.tree = CgroupTree(root, "gpulease.slice")

    def cgroup(self, path: str, **files: str) -> CgroupRef:
        """Make the cgroup *path* with *files*, dots spelled as two underscores; its reference."""
        directory = self.root / path.lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name.replace("__", ".")).write_text(text)
        ref = self.tree.resolve(path)
        assert ref is not None
        return ref


@pytest.fixture
def plain(tmp_path: Path) -> PlainTree:
    """An imitated cgroup2 mount."""
    return PlainTree(tmp_path)


@pytest.fixture
def node(tmp_path: Path) -> DeviceNode:
    """/dev/null's twin, as a node that anyone may open."""
    path = tmp_path / "renderD128"
    try:
        os.mknod(path, 0o20666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("mknod needs root")
    path.chmod(0o666)
    return DeviceNode(path, 1, 3)
