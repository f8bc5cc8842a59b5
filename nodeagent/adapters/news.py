"""What the process that replaces workers has to tell whichever worker there is."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any

_LARGEST = 64 << 10  # bytes of one message


class News:
    """One queue over all workers: what is told while there is none waits for the next.

    Make it before the fork: its two ends are in every process, and stay open there.
    """

    def __init__(self) -> None:
        self._teller, self._hearer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for end in (self._teller, self._hearer):
            end.setblocking(False)

    def fileno(self) -> int:
        """What is readable when there is something to hear."""
        return self._hearer.fileno()

    def tell(self, message: Mapping[str, Any]) -> None:
        """Never waits: what does not fit any more is left out."""
        with contextlib.suppress(OSError):
            self._teller.send(json.dumps(message).encode())

    def hear(self) -> Iterator[Mapping[str, Any]]:
        """What was told and not heard yet. For one worker, and one thread of it."""
        with contextlib.suppress(BlockingIOError):
            while True:
                yield json.loads(self._hearer.recv(_LARGEST))
