"""The hook's files and the small file systems that they lie on, by the harness's own walk and parsing."""

from __future__ import annotations

import re
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LIMITS = struct.Struct("<8sIIQIIII128s")
_DEVICE = struct.Struct("<IIQIIII128s")
_LIBRARY = re.compile(r"libgpulease-[0-9a-f]+\.so")
_MARK = re.compile(r"\.(\d+)")  # says whose a file system is
_CLOSED = {"nosuid", "nodev", "noexec"}
MOST_OWN = 128  # file systems; users beyond that share


@dataclass(frozen=True, slots=True)
class Limits:
    """What a lease's limits say of it."""

    lease: int
    devices: tuple[tuple[int, int], ...]  # bytes, and how many CUs are in the mask
    usage: str  # the path


@dataclass(frozen=True, slots=True)
class Usage:
    """A lease's usage file."""

    path: str
    uid: int  # the only one who can write it


def limits(hook: Path, stem: str, strays: list[str]) -> dict[int, Limits]:
    """What root alone writes, in a directory for each lease; whatever is otherwise is a stray."""
    found = {}
    for directory in _listed(hook / stem):
        files = [path.name for path in _listed(directory)]
        if files != ["limits"] or not directory.name.isdecimal():
            strays.append(f"{directory} holds {files}")
        if directory.name.isdecimal() and "limits" in files:
            found[int(directory.name)] = _parsed(directory / "limits", strays)
    return found


def _parsed(path: Path, strays: list[str]) -> Limits:
    content, status = path.read_bytes(), path.lstat()
    magic, _, size, says, _, count, _, _, usage = _LIMITS.unpack_from(content)
    devices = [_DEVICE.unpack_from(content, _LIMITS.size + at * _DEVICE.size) for at in range(count)]
    masks = [int.from_bytes(device[-1], "little").bit_count() for device in devices]
    if (magic, size) != (b"GPULIMIT", len(content)):
        strays.append(f"{path} is not what it says")
    if (status.st_uid, status.st_mode) != (0, stat.S_IFREG | 0o444):
        strays.append(f"{path} is not root's alone to write")
    bytes_and_cus = tuple((device[2], cus) for device, cus in zip(devices, masks, strict=True))
    return Limits(says, bytes_and_cus, usage.rstrip(b"\0").decode())


def usage(hook: Path, stem: str, strays: list[str]) -> dict[int, Usage]:
    """The usage files, each on a small file system that is one user's, which it says by ``.UID``."""
    found: dict[int, Usage] = {}
    spaces = _listed(hook / "usage")
    mounted = _mounted()
    for space in spaces:
        if _listed(space) and not mounted.get(str(space), set()) >= _CLOSED:
            strays.append(f"{space} is in use, and not mounted {','.join(sorted(_CLOSED))}")
        here = _usage_in(space, stem, strays)
        strays += [f"a second usage file of lease {lease}" for lease in here.keys() & found.keys()]
        found |= here
        marks = {int(match[1]) for path in _listed(space) if (match := _MARK.fullmatch(path.name))}
        users = {one.uid for one in here.values()}
        if len(marks) > 1 or (len(spaces) < MOST_OWN and not users <= marks):
            strays.append(f"{space} says that it is of {sorted(marks)}, and has files of {sorted(users)}")
    return found


def _usage_in(space: Path, stem: str, strays: list[str]) -> dict[int, Usage]:
    found = {}
    for path in _listed(space):
        match, status = re.fullmatch(rf"{stem}-(\d+)", path.name), path.lstat()
        if match:
            found[int(match[1])] = Usage(str(path), status.st_uid)
            if status.st_mode != stat.S_IFREG | 0o600:
                strays.append(f"{path} is not its holder's alone")
        elif not _MARK.fullmatch(path.name):
            strays.append(str(path))
    return found


def others(hook: Path, stem: str) -> Iterator[str]:
    """What lies at the top and has no business there, and a top that somebody else could write."""
    for path in _listed(hook):
        if path.name not in (stem, "usage", "lib"):
            yield str(path)
    for path in (hook.parent, hook, hook / stem, hook / "usage"):
        if path.exists() and ((status := path.lstat()).st_uid or status.st_mode & 0o022):
            yield f"{path} is not root's alone to write"
    yield from (str(path) for path in _listed(hook / "lib") if not _LIBRARY.fullmatch(path.name))


def _mounted() -> dict[str, set[str]]:
    """The options of each tmpfs, by where it is mounted."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        if right.split()[0] == "tmpfs":
            found[left.split()[4]] = set(left.split()[5].split(","))
    return found


def _listed(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []
