"""Machines to run the agent on without an AMD GPU: the shipped ones, a user's file, a tree made of one."""

from __future__ import annotations

import errno
import os
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from nodeagent.adapters.capture import capture
from nodeagent.adapters.machine_file import Files, Machine, dump, load
from nodeagent.adapters.sysfs import SysTree
from nodeagent.domain.errors import InvalidField, OutsideFault

__all__ = ["Files", "Machine", "SimulatedTree", "capture", "dump", "find", "load", "materialise", "names"]

PACKAGE = "nodeagent.machines"
SUFFIXES = (".json", ".json.xz")
UNREADABLE_MODE = 0o000


class SimulatedTree(SysTree):
    """A materialised machine whose unreadable files give EPERM to root, too, as a device cgroup does."""

    def __init__(self, root: Path, machine: Machine) -> None:
        super().__init__(root)
        self._denied = frozenset(machine.unreadable)

    def read_bytes(self, path: str) -> bytes:
        if path in self._denied:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return super().read_bytes(path)


def names() -> tuple[str, ...]:
    """The machines that ship with the agent."""
    return tuple(sorted(_shipped()))


def find(name_or_path: str) -> Machine:
    """A shipped machine by its name, else the machine file at that path."""
    shipped = _shipped()
    if name_or_path in shipped:
        with resources.as_file(shipped[name_or_path]) as path:
            return load(path)
    path = Path(name_or_path)
    if name_or_path.endswith(SUFFIXES) or path.is_file():
        return load(path)
    raise InvalidField(
        "machine", f"{name_or_path!r} is neither a machine file nor one of {', '.join(sorted(shipped))}"
    )


def materialise(machine: Machine, directory: Path) -> None:
    """Write *machine* below *directory* as real files and links; *directory* must be empty or missing.

    Unreadable files get mode 0, which stops every reader but root; `SimulatedTree` stops root as well.
    """
    content = machine.content()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise OutsideFault(directory, "is not empty; a simulated tree needs a directory of its own")
        for path, data in content.files.items():
            _write(directory / path, data)
        for path in machine.unreadable:
            _write(directory / path, content.files.get(path, b""))
            (directory / path).chmod(UNREADABLE_MODE)
        for path, target in content.links.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).symlink_to(target)
    except OSError as error:
        raise OutsideFault(directory, f"cannot hold the machine: {error}") from error


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _shipped() -> dict[str, Traversable]:
    found = {}
    for entry in resources.files(PACKAGE).iterdir():
        for suffix in SUFFIXES:
            if entry.name.endswith(suffix):
                found[entry.name.removesuffix(suffix)] = entry
    return found
