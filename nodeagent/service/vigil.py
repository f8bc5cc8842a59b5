"""What is watched: sources of news, and one holder a lease, in step with the leases that are active."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.adapters.processes import alive, pidfd_open
from nodeagent.adapters.watch import Watcher
from nodeagent.domain.lease import Anchor, Lease


class Listener(Protocol):
    """A source of news, and what comes of them."""

    def open(self) -> int | None:
        """Begin to listen: the descriptor to poll, or None where nothing is to be heard."""

    def hear(self) -> bool | None:
        """Take what has come; whether there is something to do. None: nothing will ever come again."""

    def act(self) -> None:
        """Do what was heard of."""

    def close(self) -> None: ...


class Vigil:
    """Registers each anchor once; its end only wakes the reconciler, which looks itself."""

    def __init__(
        self, wake: Callable[[], None], tree: CgroupTree | None, listeners: Mapping[str, Listener] = {}
    ) -> None:
        self._wake = wake
        self._tree = tree
        self._listeners = listeners
        self._watcher: Watcher | None = None
        self._watched: dict[int, Anchor] = {}

    def start(self) -> None:
        """Open the watcher's descriptors: after the last fork, which would share them. Again is harmless."""
        if self._watcher is not None:
            return
        self._watcher = Watcher(self._wake)
        self._watcher.start()
        for name, listener in self._listeners.items():
            descriptor = listener.open()
            if descriptor is not None:
                self._watcher.add_source(name, descriptor, listener.hear)

    def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
        for listener in self._listeners.values():
            listener.close()

    def keep(self, leases: Sequence[Lease]) -> None:
        """Watch exactly *leases*; an anchor that is gone already is left to the reconciler's look."""
        watcher = self._watcher
        if watcher is None:
            return
        wanted = {lease.id: lease.anchor for lease in leases}
        for lease_id in [
            known for known, anchor in self._watched.items() if _other(anchor, wanted.get(known))
        ]:
            watcher.remove(lease_id)
            del self._watched[lease_id]
        for lease_id, anchor in wanted.items():
            if lease_id not in self._watched:
                self._add(watcher, lease_id, anchor)
                self._watched[lease_id] = anchor

    def _add(self, watcher: Watcher, lease_id: int, anchor: Anchor) -> None:
        if anchor.pid is not None and anchor.start_time is not None:
            _add_process(watcher, lease_id, anchor.pid, anchor.start_time)
        elif self._tree is not None and anchor.cgroup is not None and anchor.inode is not None:
            try:
                with self._tree.open(CgroupRef(anchor.cgroup, anchor.inode)) as cgroup:
                    watcher.add_cgroup(lease_id, cgroup.fileno())
            except FileNotFoundError:
                return


def _other(one: Anchor, other: Anchor | None) -> bool:
    return one is not other and one != other  # most are the very same


def _add_process(watcher: Watcher, lease_id: int, pid: int, start_time: int) -> None:
    pidfd = pidfd_open(pid)
    if pidfd is None:
        return
    try:
        if alive(pid, start_time):
            watcher.add_process(lease_id, pidfd)
    finally:
        os.close(pidfd)
