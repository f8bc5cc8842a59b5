"""What a lease's container needs on the host: a note that is mounted into it, and its ticket for the plugin.

All of it is root's alone: bind mounts do not mind the directories above them. It goes with the lease, and
then no engine starts a container that was made for it: what is to be mounted is missing. A *guest*, a
container in a lease that was not taken for it, has files of its own below the lease's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeagent.adapters.docker_tickets import BOUND, TICKETS, USED
from nodeagent.adapters.hook_space import make_own
from nodeagent.adapters.hook_usage import fresh
from nodeagent.adapters.lease_names import leases_of
from nodeagent.adapters.replacing import faults_of, replace
from nodeagent.domain.container import is_id
from nodeagent.domain.errors import OutsideFault

NOTES = Path("/run/nodeagent/containers")
_NOTE, _TICKET, _LISTENER = "lease", "ticket", "seccomp"
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class ContainerFiles:
    """The files of the agent instance whose cgroup subtree is *stem*.slice. All raise OutsideFault."""

    def __init__(self, stem: str, *, notes: Path = NOTES, tickets: Path = TICKETS) -> None:
        self._stem = stem
        self._notes = notes / stem
        self._tickets = tickets / stem

    def unavailable(self) -> str | None:
        """Why no lease can have a container here, or None."""
        return None if os.geteuid() == 0 else "needs root: engines mount only what nobody else can change"

    def note(self, lease: int, guest: int | None = None) -> Path:
        """What is mounted into every container of *lease*, or into that *guest* of it."""
        below = self._notes / f"{lease:d}"
        return (below if guest is None else below / f"{guest:d}") / _NOTE

    def prepare(self, lease: int, guest: int | None = None) -> Path:
        """Write the note of a lease; again is harmless. Returns its path."""
        note = self.note(lease, guest)
        with faults_of(note):
            self._make(lease)
            note.parent.mkdir(mode=0o700, exist_ok=True)
            replace(note, f"lease={lease:d}\ninstance={self._stem}\n".encode(), 0o444)
        return note

    def listener(self, lease: int) -> Path:
        """Where the supervisor of *lease* listens, in a directory that is made."""
        listener = self._listener(lease)
        with faults_of(listener):
            self._make(lease)
        return listener

    def shut(self, lease: int) -> None:
        """Take away where a supervisor listens; gone already is success."""
        with faults_of(self._listener(lease)), contextlib.suppress(FileNotFoundError):
            self._listener(lease).unlink()

    def verify(self, lease: int, guest: int | None = None) -> None:
        """Raise OutsideFault where the note is missing, or others could write it."""
        note = self.note(lease, guest)
        with faults_of(note):
            status = note.lstat()
        if status.st_uid != 0 or status.st_mode != stat.S_IFREG | 0o444:
            raise OutsideFault(note, "is not root's alone to write")

    def admit(self, lease: int, digest: str, content: Mapping[str, Any], guest: int | None = None) -> None:
        """Write the ticket of SHA-256 *digest* for the plugin. One that was spent stays so: see `USED`."""
        path = self._tickets / digest
        with faults_of(path):
            self._make_private(self._tickets)
            # The name first, so that the ticket is found again whatever happens.
            replace(self.note(lease, guest).with_name(_TICKET), digest.encode(), 0o400)
            replace(path, json.dumps(content).encode(), 0o600)

    def bind(self, lease: int, container: str, guest: int | None = None) -> None:
        """Say for the plugin which *container* it is that the ticket was spent on; again is harmless."""
        directory = self.note(lease, guest).parent
        with faults_of(directory):
            digest = _read(directory / _TICKET)
            if _DIGEST.fullmatch(digest):
                content = json.dumps({"container": container}).encode()
                replace(self._tickets / f"{digest}{BOUND}", content, 0o600)

    def bound(self, lease: int, guest: int | None = None) -> str | None:
        """The container that the ticket was spent on, as the plugin or `bind` says; None: nobody said."""
        with faults_of(self._tickets):
            digest = _read(self.note(lease, guest).with_name(_TICKET))
            said = _read(self._tickets / f"{digest}{BOUND}") if _DIGEST.fullmatch(digest) else ""
        try:
            match json.loads(said or "{}"):
                case {"container": str(container)} if is_id(container):
                    return container
        except ValueError:
            pass
        return None

    def leases(self) -> frozenset[int]:
        """Those that have files. Raises OutsideFault."""
        if self.unavailable() is not None:
            return frozenset()
        with faults_of(self._notes), contextlib.suppress(FileNotFoundError):
            return leases_of(entry.name for entry in self._notes.iterdir())
        return frozenset()

    def remove(self, lease: int) -> None:
        """Take away what there is, each ticket first; gone already is success."""
        directory = self.note(lease).parent
        with faults_of(directory), contextlib.suppress(FileNotFoundError):
            for guest in leases_of(entry.name for entry in directory.iterdir()):
                self._remove(self.note(lease, guest).parent)
        self._remove(directory)

    def remove_guest(self, lease: int, guest: int) -> None:
        """The same of one guest alone."""
        directory = self.note(lease, guest).parent
        self._remove(directory)
        with contextlib.suppress(OSError):
            directory.parent.rmdir()  # unless another one is in there

    def _remove(self, directory: Path) -> None:
        with faults_of(directory), contextlib.suppress(FileNotFoundError):
            digest = _read(directory / _TICKET)
            if _DIGEST.fullmatch(digest):
                # The ticket itself first: nobody must find it unspent.
                for name in (digest, f"{digest}{USED}", f"{digest}{BOUND}"):
                    (self._tickets / name).unlink(missing_ok=True)
                    (self._tickets / fresh(name)).unlink(missing_ok=True)
            for entry in directory.iterdir():
                entry.unlink(missing_ok=True)
            directory.rmdir()

    def leave(self) -> None:
        """Take the directories away, if no lease of any agent has files there."""
        for directory in (self._notes, self._tickets):
            with contextlib.suppress(OSError):
                directory.rmdir()
                directory.parent.rmdir()

    def _listener(self, lease: int) -> Path:
        return self.note(lease).with_name(_LISTENER)

    def _make(self, lease: int) -> None:
        """Make the directory of one lease."""
        self._make_private(self._notes)
        self.note(lease).parent.mkdir(mode=0o700, exist_ok=True)

    @staticmethod
    def _make_private(directory: Path) -> None:
        make_own(directory.parent.parent)
        for each in (directory.parent, directory):
            with contextlib.suppress(FileExistsError):
                each.mkdir(mode=0o700)
            status = each.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o077:
                raise OutsideFault(each, "must be a directory of root's that nobody else can enter")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return ""
