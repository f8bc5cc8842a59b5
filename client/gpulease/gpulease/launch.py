"""From a process of ours to the user's command, inside a lease."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from typing import NoReturn, Optional

from gpulease.errors import GpuleaseError

_PR_SET_PDEATHSIG = 1


class NotStarted(GpuleaseError):
    """The command could not be started; *code* says what was wrong with it."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


def environment_with(
    inherited: Mapping[str, str], settings: Optional[Mapping[str, Optional[str]]]
) -> dict[str, str]:
    """*inherited* with the lease's settings: None unsets.

    Raises:
        NotStarted: the agent does not show the lease's environment to us.
    """
    if settings is None:
        raise NotStarted("NotAllowed", "the agent does not show this lease's environment to you")
    changed = dict(inherited)
    for name, value in settings.items():
        if value is None:
            changed.pop(name, None)
        elif name == "LD_PRELOAD" and inherited.get(name):
            changed[name] = f"{value}:{inherited[name]}"  # the user's own libraries stay loaded, after ours
        else:
            changed[name] = value
    return changed


def become(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by *command*.

    Raises:
        NotStarted: there is no such command, or it cannot be executed.
    """
    try:
        os.execvpe(command[0], list(command), dict(environment))  # noqa: S606 -- the user's own words
    except ValueError:
        raise NotStarted(
            "CommandNotExecutable", "a word of the command or its environment holds NUL"
        ) from None
    except OSError as fault:
        code = "CommandNotFound" if fault.errno in (errno.ENOENT, errno.ENOTDIR) else "CommandNotExecutable"
        raise NotStarted(code, f"{command[0]}: {fault.strerror}") from None


def die_with(parent: int) -> None:
    """Have the kernel send SIGTERM to this process, and to what it becomes, when *parent* dies.

    Raises:
        NotStarted: it is dead already.
    """
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        # A Python without ctypes: the agent still ends the lease when its anchor dies.
        pass
    if os.getppid() != parent:
        raise NotStarted("WrapperDied", "the wrapper died before the command started")
