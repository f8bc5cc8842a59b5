"""What is watched: the kernel's events, and one holder a lease, in step with the leases that are active."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.adapters.processes import alive, pidfd_open
from nodeagent.adapters.watch import Watcher
from nodeagent.domain.lease import Anchor, Lease
from nodeagent.service.uevents import Uevents


class Vigil:
    """Registers each anchor once; its end only wakes the reconciler, which looks itself."""

    def __init__(
        self, wake: Callable[[], None], tree: CgroupTree | None, uevents: Uevents | None = None
    ) -> None:
        self._wake = wake
        self._tree = tree
        self._uevents = uevents
        self._watcher: Watcher | None = None
        self._watched: dict[int, Anchor] = {}

    def start(self) -> None:
        """Open the watcher's descriptors: after the last fork, which would share them."""
        self._watcher = Watcher(self._wake)
        self._watcher.start()
        descriptor = self._uevents.open() if self._uevents else None
        if self._uevents is not None and descriptor is not None:
            self._watcher.add_source("uevents", descriptor, self._uevents.hear)

    def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
        if self._uevents is not None:
            self._uevents.close()

    def keep(self, leases: Sequence[Lease]) -> None:
        """Watch exactly *leases*; an anchor that is gone already is left to the reconciler's look."""
        watcher = self._watcher
        if watcher is None:
            return
        wanted = {lease.id: lease.anchor for lease in leases}
        for lease_id in [known for known, anchor in self._watched.items() if wanted.get(known) != anchor]:
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


def _add_process(watcher: Watcher, lease_id: int, pid: int, start_time: int) -> None:
    pidfd = pidfd_open(pid)
    if pidfd is None:
        return
    try:
        if alive(pid, start_time):
            watcher.add_process(lease_id, pidfd)
    finally:
        os.close(pidfd)
