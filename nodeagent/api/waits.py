"""Seats for requests that wait: each holds a thread, so there are too few to stop the others."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nodeagent.service.orders import Caller


class WaitingRoom:
    """Bounded seats in all and per uid, a subordinate uid being its owner.

    Administrators have threads of their own, so seats of their own.
    """

    def __init__(
        self,
        seats: int = 8,
        per_uid: int = 2,
        administrators: int = 2,
        owner_of: Callable[[int], int] = lambda uid: uid,
    ) -> None:
        self._free = {False: seats, True: administrators}
        self._per_uid = per_uid
        self._owner_of = owner_of
        self._seated: Counter[int] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def seat(self, caller: Caller) -> Iterator[bool]:
        """Whether the caller may wait; who may not is answered at once, with a Retry-After."""
        seated = self._take(caller)
        try:
            yield seated
        finally:
            if seated:
                self._leave(caller)

    def _take(self, caller: Caller) -> bool:
        owner = self._owner_of(caller.uid)
        with self._lock:
            crowded = not caller.administrator and self._seated[owner] >= self._per_uid
            if crowded or not self._free[caller.administrator]:
                return False
            self._free[caller.administrator] -= 1
            if not caller.administrator:
                self._seated[owner] += 1
            return True

    def _leave(self, caller: Caller) -> None:
        with self._lock:
            self._free[caller.administrator] += 1
            if not caller.administrator:
                self._seated[self._owner_of(caller.uid)] -= 1
                self._seated += Counter()  # forget uids at zero
