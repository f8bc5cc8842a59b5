"""Foreign users: who uses a GPU in no lease. Told once, and what they hold is not granted to others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from nodeagent.adapters.container_processes import container_of
from nodeagent.adapters.processes import uids_of
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.changes import Changes
from nodeagent.service.sampling import Look

MOVED_BYTES = 64 << 20  # foreign memory that comes or goes before those who wait are woken
_Users = Mapping[tuple[int, str], list[int]]  # pids by uid and device key


class Foreign:
    """What foreign users held at the last look: written by the watch, read by the survey."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._devices: Mapping[str, int] = {}

    def set(self, by_device: Mapping[str, int]) -> None:
        with self._lock:
            self._devices = {key: held for key, held in by_device.items() if held}

    def by_device(self) -> Mapping[str, int]:
        with self._lock:
            return self._devices


class ForeignUsers:
    """Tells of each user and device once for as long as it lasts, and keeps *foreign* up to date.

    *stop* ends the container that a process is in, and says which; None: they are only told of.
    """

    def __init__(
        self,
        ledger: Ledger,
        changes: Changes,
        foreign: Foreign,
        stop: Callable[[int], str | None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._changes = changes
        self._foreign = foreign
        self._stop = stop
        self._known: frozenset[tuple[int, str]] = frozenset()

    def note(self, look: Look) -> None:
        """Tell of those who are new, and wake who waits where much has changed."""
        before, by_device = self._foreign.by_device(), look.by_owner.get(None, {})
        self._foreign.set(by_device)
        users = _users(look)
        new = users.keys() - self._known
        if new:
            self._tell({key: users[key] for key in sorted(new)}, look)
        self._known = frozenset(users)
        self._stop_containers(users)
        moved = (abs(before.get(key, 0) - by_device.get(key, 0)) for key in before.keys() | by_device.keys())
        if new or any(size >= MOVED_BYTES for size in moved):
            self._changes.announce()

    def _tell(self, users: _Users, look: Look) -> None:
        with self._ledger.write(release=True) as tx:
            for (uid, device), pids in users.items():
                held = sum(look.by_process.get((pid, device), 0) for pid in pids)
                where = container_of(pids[0])
                tx.event(
                    "foreign_user",
                    uid=None,
                    device=device,
                    reason=f"uid {uid} uses the device outside every lease",
                    data={"uid": uid, "pids": pids[:16], "vram_bytes": held, "container": where},
                )

    def _stop_containers(self, users: _Users) -> None:
        if self._stop is None:
            return
        for (uid, device), pids in users.items():
            stopped = {one for pid in pids if (one := self._stop(pid)) is not None}
            for container in sorted(stopped):
                why = f"a container of uid {uid} uses the device outside every lease: docker.on_foreign"
                with self._ledger.write(release=True) as tx:
                    data = {"container": container}
                    tx.event("container_stopped", uid=None, device=device, reason=why, data=data)


def _users(look: Look) -> _Users:
    """Who has memory or queues on a device, in no lease."""
    strangers = look.sample.pids(None)
    queues = {
        (one.pid, gpu.key)
        for one in look.sample.kfd
        if one.queues and (gpu := look.inventory.of_gpu(one.gpu_id)) is not None
    }
    users: dict[tuple[int, str], list[int]] = {}
    for pid, device in sorted(look.by_process.keys() | queues):
        uids = uids_of(pid) if pid in strangers else None
        if uids and (look.by_process.get((pid, device)) or (pid, device) in queues):
            users.setdefault((uids[0], device), []).append(pid)
    return users
