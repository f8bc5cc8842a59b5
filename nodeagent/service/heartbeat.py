"""Signs of life for the service manager: sent by the reconciler, when the API has answered."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

ASK_SECONDS = 5.0  # between two questions to the API
# An agent that does not grant still keeps limits, and ends leases: after this long it counts as started, and
# its status says what it lacks. Else systemd would end it for a full disk, over and over.
GRACE_SECONDS = 60.0
_MOST_TEXT = 200


class Manager(Protocol):
    """Takes ``NAME=value`` lines; whether they arrived."""

    def tell(self, *lines: str) -> bool: ...


class Answered(Protocol):
    """*why*: what keeps grants back, None where nothing does."""

    @property
    def why(self) -> str | None: ...


class Heartbeat:
    """Its `beat` is called by the reconciler after each step that ended.

    A sign is sent only where both is so: a step of the reconciler ended, and the API answered since the last
    sign. So whatever hangs, the reconciler or the API, the signs end, and systemd's watchdog restarts the
    agent. That a whole look takes long, on a slow disk or with an engine that times out, is no reason: each
    step counts. Time is CLOCK_MONOTONIC here as in systemd: a suspended node is not a stuck one.
    """

    def __init__(
        self,
        manager: Manager,
        poll: Callable[[], Answered | None],
        *,
        watchdog_seconds: float | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._poll = poll  # the API's answer, if one has come; asks otherwise
        self._period = min(ASK_SECONDS, watchdog_seconds / 4) if watchdog_seconds else ASK_SECONDS
        self._monotonic = monotonic
        self._began = monotonic()
        self._next = self._began
        self._ready = False
        self._status = ""

    def beat(self) -> None:
        """A step of the reconciler has ended. Never waits, and never raises."""
        now = self._monotonic()
        if now < self._next or (answer := self._poll()) is None:
            return
        self._next = now + (self._period if self._ready else 0)
        lines = ["WATCHDOG=1"]
        if not self._ready and (answer.why is None or now - self._began >= GRACE_SECONDS):
            lines.append("READY=1")
        status = f"not granting: {_one_line(answer.why)}" if answer.why else "granting"
        if status != self._status:
            lines.append(f"STATUS={status}")
        if self._manager.tell(*lines):
            self._ready = self._ready or "READY=1" in lines
            self._status = status


def _one_line(why: str) -> str:
    """A line is what a message is made of, so nothing in *why* may begin another."""
    return "".join(char if char.isprintable() else " " for char in why)[:_MOST_TEXT]
