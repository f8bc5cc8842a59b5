"""Signals of a wrapper: they end it while it still asks, and go on to the command once there is one.

The command stays in the wrapper's process group, so that pipelines and job control work as they do
without us. What the terminal sends (Ctrl-C, Ctrl-Z, Ctrl-\\) has then reached the command already; the kernel
marks it as its own (``si_code``), and it is not sent again. What a process sends to the wrapper is passed
on. A process that signals the whole group reaches both: the command may see that signal twice.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Optional

PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGTSTP,
)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_JOB_CONTROL_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class Interrupted(Exception):
    """A signal came before there was a command that could get it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Relay:
    """Takes the signals of this process over. One per process: signal dispositions are the process's."""

    def __init__(self) -> None:
        # What was ignored from the start (nohup) stays so, for the command too.
        self._kept = [one for one in PASSED_ON if signal.getsignal(one) is not signal.SIG_IGN]
        self._waited = {*self._kept, signal.SIGCHLD}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, set())
        self._interrupted = False
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, no child could be waited for

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """While inside, the first ending signal raises `Interrupted`; from then on all are held back."""
        for one in ENDING:
            if one in self._kept:
                signal.signal(one, self._interrupt)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, self._waited)

    def _interrupt(self, number: int, _frame: Optional[FrameType]) -> None:
        if not self._interrupted:
            self._interrupted = True
            raise Interrupted(number)

    def give_back(self) -> None:
        """In the child: what a program expects to find, and what was inherited."""
        for one in self._kept:
            signal.signal(one, signal.SIG_DFL)
        restore_ignored()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def let_in(self) -> None:
        """Deliver again what was held back; whoever calls has handlers for it."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def hold_back(self) -> None:
        """Hold signals back again: the command has ended, and what remains is to be done in any case."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self._waited)

    def until_end(self, child: int) -> int:
        """Pass signals on to *child* until it ends; the wait status."""
        while True:
            got = signal.sigwaitinfo(self._waited)
            if got.si_signo != signal.SIGCHLD:
                if _for_us_alone(got, child):
                    os.kill(child, got.si_signo)
                continue
            pid, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
            if pid == child and os.WIFSTOPPED(status):
                _stop_along(child, os.WSTOPSIG(status))
            elif pid == child:
                return status


def restore_ignored() -> None:
    """Python ignores these for itself; a program started so would never die of a closed pipe."""
    for one in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(one, signal.SIG_DFL)


def _for_us_alone(got: signal.struct_siginfo, child: int) -> bool:
    if got.si_code > 0:
        # From the kernel. A hangup goes to the session's leader only, which may be us.
        return got.si_signo == signal.SIGHUP and os.getsid(0) == os.getpid()
    return bool(got.si_pid != child)


def _stop_along(child: int, number: int) -> None:
    """Stop with a command that job control stopped: the shell watches the wrapper. Its SIGCONT wakes both."""
    if number not in _JOB_CONTROL_STOPS:
        return
    try:
        state = (
            Path(f"/proc/{child}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()[0]
        )
    except (OSError, IndexError):
        return
    if state == "T":
        os.kill(os.getpid(), signal.SIGSTOP)
