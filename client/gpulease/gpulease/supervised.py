"""``gpulease run`` of a lease that takes one command: the agent starts it, under a filter that root puts
there or with shared memory of its own.

The command is not our child, and has no terminal of its own. So every signal that reaches us goes to it, and
its end comes by a pipe.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Optional

from gpulease.client import Client
from gpulease.launch import NotStarted
from gpulease.relay import PASSED_ON, Relay

# linux/fcntl.h; Python before 3.9 has no names for them
_ADD_SEALS = 1033
_SEAL_ALL = 0x1 | 0x2 | 0x4 | 0x8


def run_supervised(
    client: Client, relay: Relay, lease_id: int, command: Sequence[str], environment: Mapping[str, str]
) -> Optional[int]:
    """Run *command* in the lease to its end; its wait status, None where its supervisor died before it.

    Raises:
        NotStarted: this Python or kernel has no sealed memory files, a word holds NUL, or we may not enter
            the directory that we are in.
        GpuleaseError: the agent started nothing, and says why.
    """
    reading, writing = os.pipe()
    try:
        with _opened(command, environment) as (words, cwd):
            try:
                pid = client.launch(lease_id, words, cwd, writing)
            finally:
                os.close(writing)
        with _passing_on(relay, pid) as pidfd:
            report = os.read(reading, 64).split()
            if not report:
                _await_end(pidfd)
    finally:
        os.close(reading)
    return int(report[1]) if len(report) == 2 else None


def sealed(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """A memory file with the words of a launch, which nobody can change: its descriptor.

    Raises NotStarted: this Python or kernel has no such files, or a word holds NUL.
    """
    words = [str(len(command)), *command, *(f"{name}={value}" for name, value in environment.items())]
    if any("\0" in word for word in words):
        raise NotStarted("CommandNotExecutable", "a word of the command or its environment holds NUL")
    try:
        memory = os.memfd_create("gpulease-command", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError) as fault:
        raise NotStarted("CommandNotExecutable", f"no sealed memory files: {fault}") from None
    with os.fdopen(os.dup(memory), "wb") as file:
        file.write(b"".join(os.fsencode(word) + b"\0" for word in words))
    fcntl.fcntl(memory, _ADD_SEALS, _SEAL_ALL)
    return memory


@contextmanager
def _opened(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    memory = sealed(command, environment)
    try:
        try:
            cwd = os.open(".", os.O_PATH | os.O_DIRECTORY)
        except OSError as fault:  # it may be one that we came into with other rights
            raise NotStarted("CommandNotExecutable", f"the working directory: {fault.strerror}") from None
        try:
            yield memory, cwd
        finally:
            os.close(cwd)
    finally:
        os.close(memory)


@contextmanager
def _passing_on(relay: Relay, pid: int) -> Iterator[Optional[int]]:
    """While inside, what is sent to us is sent to *pid*; a stop stops both. Signals held back so far, too."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        pidfd = None

    def pass_on(number: int, _frame: Optional[FrameType]) -> None:
        if pidfd is None:
            return
        with suppress(ProcessLookupError):
            # It has no terminal, where alone SIGTSTP would stop it.
            signal.pidfd_send_signal(pidfd, signal.SIGSTOP if number == signal.SIGTSTP else number)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)

    for number in PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    relay.let_in()
    try:
        yield pidfd
    finally:
        relay.hold_back()
        if pidfd is not None:
            os.close(pidfd)


def _await_end(pidfd: Optional[int]) -> None:
    if pidfd is not None:
        import select

        select.select([pidfd], [], [])
