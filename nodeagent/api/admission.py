"""Who may connect: administrators have a lane of their own, everybody else a few connections each."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from nodeagent.service.orders import ANONYMOUS


@dataclass(frozen=True, slots=True)
class Lane:
    """Whose connection it is, and whether it runs on the threads that are kept for administrators."""

    uid: int
    reserved: bool

    @property
    def web(self) -> bool:
        """Whether it came by TCP, and runs on the threads that are kept for that."""
        return self.uid == ANONYMOUS


Classify = Callable[[socket.socket], Lane]


@dataclass(frozen=True, slots=True)
class Limits:
    """Connections at one time, and how long each may live in all, in seconds."""

    per_uid: int = 4
    web: int = 16
    users: int = 200
    reserved: int = 256
    life: float = 10.0
    reserved_life: float = 60.0


class Admission:
    """Counts open connections. For one thread."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._by_uid: Counter[int] = Counter()
        self._reserved = 0

    def enter(self, lane: Lane) -> bool:
        """Whether one more is let in; if so, `leave` must follow."""
        if lane.reserved:
            if self._reserved >= self.limits.reserved:
                return False
            self._reserved += 1
            return True
        most = self.limits.web if lane.web else self.limits.per_uid
        if self._by_uid[lane.uid] >= most or self._by_uid.total() >= self.limits.users:
            return False
        self._by_uid[lane.uid] += 1
        return True

    def leave(self, lane: Lane) -> None:
        if lane.reserved:
            self._reserved -= 1
            return
        self._by_uid[lane.uid] -= 1
        if not self._by_uid[lane.uid]:
            del self._by_uid[lane.uid]

    def life(self, lane: Lane) -> float:
        """Seconds from accept to the end, whatever the connection does."""
        return self.limits.reserved_life if lane.reserved else self.limits.life
