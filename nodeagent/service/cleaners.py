"""The threads that clean what leases leave: a lease is one thread's at a time, and has its turns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import structlog

from nodeagent.domain.errors import AgentError

log = structlog.get_logger()

CLEANERS = 8
# How long a cleaner stays with one lease before the others have their turn: one user's leases that are not
# proved clean must not hold up everybody's.
TURN_SECONDS = 0.1

Work = Callable[[int], bool]  # one turn with a lease: whether that needs another


class Cleaners:
    """Gives leases their turns until they need none; then *done* is told which one."""

    def __init__(self, done: Callable[[int], None]) -> None:
        self._done = done
        self._guard = threading.Lock()
        self._running: dict[int, Future[None]] = {}
        self._closed = False
        self._pool = ThreadPoolExecutor(CLEANERS, thread_name_prefix="cleaner")

    def close(self) -> None:
        """Take no more work; what is unfinished is taken up again at the next start."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def submit(self, lease_id: int, work: Work) -> Future[None]:
        """Have *work* done for a lease, unless somebody is at it. The future ends with the first turn."""
        with self._guard:
            running = self._running.get(lease_id)
            if running is not None and not running.done():
                return running
            future = self._pool.submit(self._run, work, lease_id)
            self._running[lease_id] = future
            return future

    def _run(self, work: Work, lease_id: int) -> None:
        again = False
        try:
            again = work(lease_id)
        except Exception as fault:
            # The reconciler comes back to every lease that is still releasing, after a restart too.
            if not self._closed:
                log.error("cleaning failed", lease=lease_id, why=str(fault), exc_info=_unforeseen(fault))
        else:
            if not again:
                self._done(lease_id)
        finally:
            with self._guard:
                self._running.pop(lease_id, None)
        if again and not self._closed:
            self.submit(lease_id, work)


def _unforeseen(fault: Exception) -> Exception | None:
    """*fault*, if its traceback is of use: none of those that the agent raises or the node gives."""
    return None if isinstance(fault, AgentError | OSError) else fault
