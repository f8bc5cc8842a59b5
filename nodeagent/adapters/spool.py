"""The spool: calls of Slurm's scripts that nobody answered, each a file of root's."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nodeagent.adapters.private_directory import check_private
from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.slurm import LARGEST_ENVIRONMENT

_NAME = re.compile(r"(prolog|epilog)-[0-9]{1,10}-([0-9a-f-]{36})-[0-9.]{1,16}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Unanswered:
    """One call: which script's, in which boot, and with what body."""

    path: Path
    script: str  # "prolog" | "epilog"
    boot_id: str
    body: bytes


class SpoolFiles:
    """The records in *directory*, which only root writes. What has another name is not one, or not yet."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self) -> Iterator[Unanswered]:
        """Those there are, by name; none where there is no directory.

        Raises:
            OutsideFault: others than root can write there, or a record cannot be read.
        """
        check_private(self._directory)
        try:
            names = sorted(entry.name for entry in self._directory.iterdir())
        except FileNotFoundError:
            return
        except OSError as fault:
            raise outside_fault(self._directory, fault) from fault
        for found in (match for name in names if (match := _NAME.fullmatch(name))):
            path = self._directory / found[0]
            yield Unanswered(path, found[1], found[2], _body(path))

    @staticmethod
    def remove(record: Unanswered) -> None:
        """It was acted on. Raises OutsideFault."""
        try:
            record.path.unlink(missing_ok=True)
        except OSError as fault:
            raise outside_fault(record.path, fault) from fault


def _body(path: Path) -> bytes:
    """The file's content; longer than any body where it is too long, which no parser then takes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()):
                raise OutsideFault(path, "is no file of root's: remove it")
            return file.read(LARGEST_ENVIRONMENT + 1)
    except OSError as fault:
        raise outside_fault(path, fault) from fault
