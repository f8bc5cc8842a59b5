"""The tickets of leases, one file each, that the agent writes and docker's authorization plugin takes.

``DIR/<instance>/<sha256 of the ticket>`` root 0600 is a live lease's; only the agent makes and removes it.
The plugin links it to ``….used`` as it lets a create through: which of several calls does so is the kernel's
choice, and what has such a link is spent. ``….bound`` (``{"container": "<id>"}``) says which container
dockerd made then. The agent removes the bare name first.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from nodeagent.adapters.private_directory import check_private
from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain.container import is_id
from nodeagent.domain.docker_ticket import Ticket, digest, ticket_from
from nodeagent.domain.errors import InvalidField, OutsideFault

TICKETS = Path("/run/nodeagent/tickets")
# Beside a ticket: the mark that it is spent, and what container it was spent on.
USED, BOUND = ".used", ".bound"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST = 256 * 1024


class Tickets:
    """The tickets of all agents of this node, below *directory*."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, token: str) -> Ticket | None:
        """What *token* stands for; None where it is spent, wrong, or its lease has ended.

        Raises:
            OutsideFault: the directory is not root's alone, or the file is not a ticket.
        """
        path = self._path(token)
        return None if path is None or _beside(path, USED).exists() else _read(path)

    def take(self, token: str) -> bool:
        """Spend *token*; False where another call, or the lease's end, was faster."""
        path = self._path(token)
        try:
            if path is not None:
                _beside(path, USED).hardlink_to(path)
                return True
        except (FileExistsError, FileNotFoundError):
            pass
        except OSError as fault:
            raise outside_fault(path, fault) from fault
        return False

    def give_back(self, token: str) -> None:
        """Let *token* count again: no container came of it."""
        path = self._path(token)
        if path is not None and not _beside(path, BOUND).exists():
            _beside(path, USED).unlink(missing_ok=True)

    def bind(self, token: str, container: str) -> None:
        """Keep which *container*, a whole id, came of *token*, for as long as its lease lives.

        Raises:
            OutsideFault: it cannot be written.
        """
        path = self._path(token)
        if path is not None:
            try:
                _write(_beside(path, BOUND), json.dumps({"container": container}))
            except OSError as fault:
                raise outside_fault(path, fault) from fault

    def leased(self) -> frozenset[str]:
        """The ids of the containers that came of tickets of live leases.

        Raises:
            OutsideFault: as `find`.
        """
        return frozenset(filter(None, map(_container, self._named("*" + BOUND))))

    def _path(self, token: str) -> Path | None:
        return next(self._named(digest(token)), None)

    def _named(self, name: str) -> Iterator[Path]:
        check_private(self._directory)
        for path in self._directory.glob(f"*/{name}"):
            check_private(path.parent)
            yield path


def _beside(path: Path, suffix: str) -> Path:
    return path.with_suffix(suffix)


def _read(path: Path) -> Ticket | None:
    record = _load(path)
    try:
        return None if record is None else ticket_from(record)
    except InvalidField as wrong:
        raise OutsideFault(path, str(wrong)) from wrong


def _container(path: Path) -> str | None:
    record = _load(path)
    name = record.get("container") if isinstance(record, dict) else None
    if record is not None and not is_id(name):
        raise OutsideFault(path, "it names no container: remove it with its lease")
    return name


def _load(path: Path) -> object:
    """The JSON in *path*, None where it is gone.

    Raises:
        OutsideFault: it is not a file of root's, or no JSON.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise outside_fault(path, fault) from fault
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()):
            raise OutsideFault(path, "it is not a file of root's")
        try:
            return json.loads(file.read(_LARGEST))
        except ValueError as wrong:
            raise OutsideFault(path, f"it is no JSON: {wrong}") from wrong


def _write(path: Path, words: str) -> None:
    new = path.with_name(path.name + ".new")
    with os.fdopen(os.open(new, _CREATE, 0o600), "w") as file:
        file.write(words)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
