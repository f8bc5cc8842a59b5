"""What a command is waiting for, in one line of a terminal that goes away again. Elsewhere: nothing."""

from __future__ import annotations

import time

from gpulease.models import Lease
from gpulease.screen import Screen, safe

_WORDS = {"queued": "waits in the queue", "preparing": "is being prepared", "releasing": "is being released"}
_ANEW = "\r\x1b[K"


class Progress:
    """Called with a lease each time that it was looked at; `end` wipes the line out."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._started = time.monotonic()
        self._shown = False

    def __call__(self, lease: Lease) -> None:
        words = _WORDS.get(lease.state)
        if words is None or not self._screen.terminal:
            return
        seconds = int(time.monotonic() - self._started)
        more = lease.reason or str(lease.queue or "")
        why = f": {more}" if more else ""
        line = safe(f"gpulease: lease {lease.id} {words}, {seconds} s{why}")
        self._screen.command(_ANEW, line[: self._screen.columns - 1])
        self._screen.flush()
        self._shown = True

    def end(self) -> None:
        if self._shown:
            self._screen.command(_ANEW)
            self._screen.flush()
            self._shown = False
