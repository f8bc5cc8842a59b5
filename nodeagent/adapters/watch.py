"""Wake the reconciler when a holder may have ended, or a device changed. It then looks itself."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum, auto

from nodeagent.adapters.processes import pidfd_alive
from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain.errors import OutsideFault


class _Look(Enum):
    LIVES = auto()
    EMPTY = auto()  # a cgroup that may be entered again
    ENDED = auto()  # for good; it would give events without end
    IDLE = auto()  # nothing that concerns anybody


@dataclass(frozen=True, slots=True)
class _Watched:
    key: Hashable
    descriptor: int
    look: Callable[[int], _Look]


class Watcher:
    """One thread on one epoll of pidfds, ``cgroup.events`` files and sources of news; events call *wake*.

    *wake* is called from that thread, and from the adding itself where that finds an end; it must not block
    or raise. Start it after the last fork: threads do not survive one.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._by_key: dict[Hashable, _Watched] = {}
        self._by_descriptor: dict[int, _Watched] = {}
        self._epoll: select.epoll | None = None
        self._interrupt = -1
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. The descriptors are made here: an epoll made before a fork would be shared."""
        self._stopping = False
        self._epoll = select.epoll()
        self._interrupt = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._interrupt, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, args=(self._epoll,), name="watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and give all descriptors back; again is harmless."""
        if self._epoll is None or self._thread is None:
            return
        self._stopping = True
        os.eventfd_write(self._interrupt, 1)
        self._thread.join()
        with self._lock:
            for watched in list(self._by_key.values()):
                self._forget(watched)
            self._epoll.close()
            self._epoll = None
            os.close(self._interrupt)

    def running(self) -> bool:
        """Whether the thread is there: without it only the reconciler's period finds a holder's end."""
        return self._thread is not None and self._thread.is_alive()

    def watched(self) -> frozenset[Hashable]:
        """The keys whose end was not seen yet."""
        with self._lock:
            return frozenset(self._by_key)

    def add_process(self, key: Hashable, pidfd: int) -> None:
        """Wake when the process behind *pidfd* ends, at once if it has. The caller keeps its own *pidfd*."""
        self._add(_Watched(key, os.dup(pidfd), _look_at_process), select.EPOLLIN)

    def add_cgroup(self, key: Hashable, directory: int) -> None:
        """Wake when the cgroup of the descriptor *directory* is populated or emptied; at once if empty now.

        Its removal, which only an empty one allows, is no event of its own. Raises OutsideFault where there
        is no such file or it gives no events.
        """
        try:
            descriptor = os.open(
                "cgroup.events", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory
            )
        except OSError as fault:
            raise outside_fault(f"{key}: cgroup.events", fault) from fault
        # Unread, the file counts as changed and would give an event at once.
        _look_at_cgroup(descriptor)
        self._add(_Watched(key, descriptor, _look_at_cgroup), select.EPOLLPRI)

    def add_source(self, key: Hashable, descriptor: int, hear: Callable[[], bool | None]) -> None:
        """Call *hear* when *descriptor* can be read, from the thread and now; wake where it says so.

        It must neither block, raise, nor call this watcher; None from it means that no more will come. The
        caller keeps its own *descriptor*.
        """

        def look(_: int) -> _Look:
            heard = hear()
            if heard is None:
                return _Look.ENDED
            return _Look.EMPTY if heard else _Look.IDLE

        self._add(_Watched(key, os.dup(descriptor), look), select.EPOLLIN)

    def remove(self, key: Hashable) -> None:
        """Watch *key* no longer; an unknown key is no fault."""
        with self._lock:
            watched = self._by_key.get(key)
            if watched is not None:
                self._forget(watched)

    def _add(self, watched: _Watched, events: int) -> None:
        with self._lock:
            previous = self._by_key.get(watched.key)
            if previous is not None:
                self._forget(previous)
            self._register(watched, events)
            # After the registration: a change before it is seen here, a later one is an event.
            look = watched.look(watched.descriptor)
            if look is _Look.ENDED:
                self._forget(watched)
        if look not in (_Look.LIVES, _Look.IDLE):
            self._wake()

    def _register(self, watched: _Watched, events: int) -> None:
        try:
            if self._epoll is None:
                raise OutsideFault(watched.key, "the watcher is not running")
            self._epoll.register(watched.descriptor, events)
        except OSError as fault:
            os.close(watched.descriptor)
            raise outside_fault(watched.key, fault, EPERM="gives no events: not a kernel's file") from fault
        except OutsideFault:
            os.close(watched.descriptor)
            raise
        self._by_key[watched.key] = watched
        self._by_descriptor[watched.descriptor] = watched

    def _forget(self, watched: _Watched) -> None:
        del self._by_key[watched.key]
        del self._by_descriptor[watched.descriptor]
        # Before the close: an epoll keeps what another descriptor (here the caller's pidfd) still holds open.
        if self._epoll is not None:
            self._epoll.unregister(watched.descriptor)
        os.close(watched.descriptor)

    def _run(self, epoll: select.epoll) -> None:
        while not self._stopping:
            for descriptor, _ in epoll.poll():
                if descriptor != self._interrupt and self._changed(descriptor):
                    self._wake()

    def _changed(self, descriptor: int) -> bool:
        """Whether the event is for the reconciler; the look at what it was for arms its next event."""
        with self._lock:
            watched = self._by_descriptor.get(descriptor)
            if watched is None:
                return False
            look = watched.look(descriptor)
            if look is _Look.ENDED:
                self._forget(watched)
            return look is not _Look.IDLE


def _look_at_process(pidfd: int) -> _Look:
    return _Look.LIVES if pidfd_alive(pidfd) else _Look.ENDED


def _look_at_cgroup(descriptor: int) -> _Look:
    try:
        text = os.pread(descriptor, 4096, 0)
    except OSError as fault:
        # ENODEV: removed. Anything else would come again and again as well.
        if fault.errno in (errno.EINTR, errno.EAGAIN):
            return _Look.EMPTY
        return _Look.ENDED
    return _Look.LIVES if b"populated 1" in text.splitlines() else _Look.EMPTY
