"""Wake the reconciler when a holder may have ended. An event says nothing more: the reconciler looks itself."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain.errors import OutsideFault


@dataclass(frozen=True, slots=True)
class _Watched:
    key: Hashable
    descriptor: int
    over: Callable[[int], bool | None]  # True: ended for good; False: changed, watch on; None: nothing


class Watcher:
    """One thread on one epoll of pidfds and ``cgroup.events`` files; each event calls *wake*.

    *wake* is called from that thread and from `add_process` and `add_cgroup` themselves, must not block and
    must not raise. Start it after the last fork: threads do not survive one.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._by_key: dict[Hashable, _Watched] = {}
        self._by_descriptor: dict[int, _Watched] = {}
        self._epoll = select.epoll()
        self._interrupt = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._interrupt, select.EPOLLIN)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        """Start the thread. Call it once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and give all descriptors back; again is harmless."""
        if self._epoll.closed:
            return
        self._stopping = True
        os.eventfd_write(self._interrupt, 1)
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            for watched in list(self._by_key.values()):
                self._forget(watched)
            self._epoll.close()
            os.close(self._interrupt)

    def running(self) -> bool:
        """Whether the thread is there: without it only the reconciler's period finds a holder's end."""
        return self._thread.is_alive()

    def watched(self) -> frozenset[Hashable]:
        """The keys whose end was not seen yet."""
        with self._lock:
            return frozenset(self._by_key)

    def add_process(self, key: Hashable, pidfd: int) -> None:
        """Wake when the process behind *pidfd* ends, at once if it has. The caller keeps its own *pidfd*."""
        self._add(_Watched(key, os.dup(pidfd), _process_over), select.EPOLLIN)

    def add_cgroup(self, key: Hashable, directory: int) -> None:
        """Wake when the cgroup of the descriptor *directory* is populated, emptied or removed.

        At once if it is empty now. Raises OutsideFault where there is no such file or it gives no events.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open("cgroup.events", flags, dir_fd=directory)
        except OSError as fault:
            raise outside_fault(f"{key}: cgroup.events", fault) from fault
        self._add(_Watched(key, descriptor, _cgroup_over), select.EPOLLPRI)
        # Reading arms the notification, so the first look is also what nothing can slip past.
        if not _populated(descriptor):
            self._wake()

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
            try:
                self._epoll.register(watched.descriptor, events)
            except (OSError, ValueError) as fault:
                os.close(watched.descriptor)
                why = (
                    "the watcher is stopped" if self._epoll.closed else "gives no events: not a kernel's file"
                )
                raise OutsideFault(watched.key, why) from fault
            self._by_key[watched.key] = watched
            self._by_descriptor[watched.descriptor] = watched

    def _forget(self, watched: _Watched) -> None:
        del self._by_key[watched.key]
        del self._by_descriptor[watched.descriptor]
        # Before the close: an open file description that lives on elsewhere (a dup) would stay registered.
        self._epoll.unregister(watched.descriptor)
        os.close(watched.descriptor)

    def _run(self) -> None:
        while not self._stopping:
            for descriptor, _ in self._epoll.poll():
                if descriptor != self._interrupt and self._changed(descriptor):
                    self._wake()

    def _changed(self, descriptor: int) -> bool:
        """Look at the thing itself: the number may by now be another registration's."""
        with self._lock:
            watched = self._by_descriptor.get(descriptor)
            if watched is None:
                return False
            over = watched.over(descriptor)
            if over:
                # Stays readable for ever: watched on, it would wake without end.
                self._forget(watched)
            return over is not None


def _process_over(pidfd: int) -> bool | None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return True if poll.poll(0) else None


def _cgroup_over(descriptor: int) -> bool:
    try:
        os.pread(descriptor, 4096, 0)
    except OSError as fault:
        if fault.errno == errno.ENODEV:
            return True
        raise
    return False


def _populated(descriptor: int) -> bool:
    try:
        return b"populated 1" in os.pread(descriptor, 4096, 0).splitlines()
    except OSError:
        return False
