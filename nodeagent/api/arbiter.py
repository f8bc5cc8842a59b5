"""gunicorn's arbiter, whose one worker is replaced without two being there at a time.

The stock one answers SIGHUP by starting the new workers beside the old: two reconcilers would end each
other's grants, and two writers share a ledger. Here the old one leaves first. The listening sockets are the
arbiter's, so who connects meanwhile waits in their queue.
"""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable
from typing import Any

import structlog
from gunicorn.arbiter import Arbiter  # type: ignore[import-untyped]
from gunicorn.errors import HaltServer  # type: ignore[import-untyped]

log = structlog.get_logger()

STOP_SECONDS = 10.0  # that a worker's threads have to end, when its last request has; then it is killed
_STEP_SECONDS = 0.05


class AgentArbiter(Arbiter):  # type: ignore[misc]
    """Its application is an `AgentServer`."""

    cfg: Any  # gunicorn's own

    def handle_hup(self) -> None:
        """Serve with new settings; with the old ones where the new cannot be had, or do not come up."""
        reload, before = self.app.reload_with, self.app.serving
        if reload is None:
            log.warning("SIGHUP: this server has nothing to read anew")
            return
        reload.begin()
        try:
            self.app.take(reload.make())
        except Exception as fault:  # whatever it is: the worker that serves knows nothing of it
            reload.failed(_one_line(fault))
            return
        why = self._replace_worker()
        if why is None:
            reload.done()
            return
        self.app.take(before)
        again = self._replace_worker()
        if again is not None:
            raise HaltServer(f"no worker comes up any more: {again}", self.WORKER_BOOT_ERROR)
        reload.failed(why)

    def _replace_worker(self) -> str | None:
        """One worker after the other; why the new one does not serve, None where it does."""
        self.kill_workers(signal.SIGTERM)
        if not self._until(self._nobody, self.cfg.graceful_timeout + STOP_SECONDS):
            log.error("a worker did not end in time, and is killed", workers=list(self.WORKERS))
            self._kill()
        self.cfg = self.app.cfg
        self.app.listen()
        worker = self.WORKERS[self.spawn_worker()]
        try:
            self._until(lambda: worker.up or self._nobody(), self.timeout)
        except HaltServer:
            worker.tmp.close()  # it ended without a word, so `reap_workers` did not
        if worker.up:
            return None
        why = "ended" if self._nobody() else f"was not up within {self.timeout} s"
        self._kill()
        return f"the new worker {why}: the agent's log has more"

    def _kill(self) -> None:
        self.kill_workers(signal.SIGKILL)
        self._until(self._nobody, STOP_SECONDS)

    def _nobody(self) -> bool:
        return not self.WORKERS

    def _until(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Reap and wait until *reached*; whether it was, within *seconds*. A stop goes before that."""
        deadline = time.monotonic() + seconds
        again = False
        while not reached() and time.monotonic() < deadline:
            asked = self._signal()
            if asked == signal.SIGTERM:
                self.handle_term()
            elif asked in (signal.SIGINT, signal.SIGQUIT):
                self.handle_int()
            again = again or asked == signal.SIGHUP
            self.reap_workers()
        if again:  # settings that may be newer than those that were just read
            self.SIG_QUEUE.put_nowait(signal.SIGHUP)
        return reached()

    def _signal(self) -> int | None:
        try:
            found: int = self.SIG_QUEUE.get(timeout=_STEP_SECONDS)
            return found
        except queue.Empty:
            return None


def _one_line(fault: Exception) -> str:
    return " ".join(str(fault).split()) or repr(fault)
