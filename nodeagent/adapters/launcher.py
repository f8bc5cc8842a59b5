"""What has to be done in the node's own namespaces and under no sandbox: starting users' commands, mounting.

A command that the agent started itself would live in the agent's sandbox: its read-only file system, its
system calls, its capabilities. And what is mounted in there, nobody else sees. So under systemd a process of
PID 1's does both, at a message on a socket (nodeagent/hook/supervisor_outside.c).
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from nodeagent.adapters import systemcalls
from nodeagent.adapters.processes import PROC
from nodeagent.domain.errors import OutsideFault

# The start is answered by a request, which holds its thread for five at most.
LONGEST_START_SECONDS = 4.0
_LONGEST_ANSWER = 512
_DONE = "0"
_MOST_AT_ONCE = 8
_HINT = "see systemctl status nodeagent-outside.socket"
_TMPFS_FLAGS = systemcalls.MS_NOSUID | systemcalls.MS_NODEV | systemcalls.MS_NOEXEC


class Launcher(Protocol):
    """*world*: the /proc directory of a process whose namespaces and limits a command would begin with."""

    @property
    def world(self) -> Path: ...

    def launch(self, binary: Path, request: int, descriptors: Sequence[int]) -> None:
        """Have *binary* read the *request*, with these of our descriptors by the numbers that they have here.

        Raises:
            OutsideFault: it was not started.
        """

    def probe(self, binary: Path, what: str) -> str | None:
        """Why *binary* says that no command can be started so (``probe``, ``probe-ipc``), or None."""

    def mount(self, options: str, directories: Sequence[Path]) -> None:
        """Mount a tmpfs without programs and devices on each. Raises OSError at the first that fails."""

    def unmount(self, directories: Sequence[Path]) -> None:
        """Take away what is mounted on each, as far as nobody uses it. Raises OSError when all were tried."""


class _Here:
    """By this process itself: for an agent in no sandbox."""

    world = PROC / "self"

    def launch(self, binary: Path, request: int, descriptors: Sequence[int]) -> None:
        try:
            # It forks and ends at once: the one that stays is not the agent's child.
            subprocess.run(
                [binary, "launch", str(request)],
                pass_fds=sorted({*descriptors, request}),
                cwd="/",
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                check=False,  # it answers by a pipe of the request's
                timeout=LONGEST_START_SECONDS,
            )
        except (OSError, subprocess.SubprocessError) as fault:
            raise OutsideFault(binary, f"cannot be started: {fault}") from fault

    def probe(self, binary: Path, what: str) -> str | None:
        try:
            tried = subprocess.run([binary, what], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.SubprocessError) as fault:
            return f"{binary}: {fault}"
        return None if tried.returncode == 0 else tried.stdout.strip() or f"{binary}: {what} failed"

    def mount(self, options: str, directories: Sequence[Path]) -> None:
        for directory in directories:
            systemcalls.mount("gpulease", directory, "tmpfs", _TMPFS_FLAGS, options)

    def unmount(self, directories: Sequence[Path]) -> None:
        faults = []
        for directory in directories:
            try:
                systemcalls.umount(directory)
            except OSError as fault:
                faults.append(fault)
        if faults:
            raise faults[0]


HERE = _Here()


class Outside:
    """By a process that systemd starts for whoever connects to *path*: nodeagent-outside.socket."""

    world = PROC / "1"

    def __init__(self, path: Path) -> None:
        self._path = path

    def launch(self, binary: Path, request: int, descriptors: Sequence[int]) -> None:
        passed = sorted({*descriptors, request})
        try:
            answer = self._ask(passed, "launch", str(request), ",".join(map(str, passed)))
        except OSError as fault:
            raise OutsideFault(self._path, f"{fault.strerror}: {_HINT}") from fault
        if answer != _DONE:
            raise OutsideFault(self._path, f"the command was not started: {answer}")

    def probe(self, binary: Path, what: str) -> str | None:
        try:
            answer = self._ask((), what, str(binary))
        except OSError as fault:
            return f"{self._path}: {fault.strerror}: {_HINT}"
        return None if answer == _DONE else answer

    def mount(self, options: str, directories: Sequence[Path]) -> None:
        self._on("mount", options, directories)

    def unmount(self, directories: Sequence[Path]) -> None:
        self._on("unmount", "-", directories)

    def _on(self, verb: str, options: str, directories: Sequence[Path]) -> None:
        """One process for as many as a message takes: its start is what costs."""
        for first in range(0, len(directories), _MOST_AT_ONCE):
            part = directories[first : first + _MOST_AT_ONCE]
            answer = self._ask((), verb, options, *map(str, part))
            if answer != _DONE:
                number = int(answer) if answer.isdecimal() else errno.EPROTO
                raise OSError(number, os.strerror(number), str(part[0]))

    def _ask(self, descriptors: Sequence[int], *words: str) -> str:
        """Send *words*; the answer: `_DONE`, an errno's number, or what a probe found. Raises OSError."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(LONGEST_START_SECONDS)
            connection.connect(os.fspath(self._path))
            message = b"".join(os.fsencode(word) + b"\0" for word in words)
            socket.send_fds(connection, [message], list(descriptors))
            answer = connection.recv(_LONGEST_ANSWER).decode("ascii", "replace").strip()
        if not answer:
            raise OSError(errno.ECONNRESET, "it ended without an answer", str(self._path))
        return answer
