"""What there is outside the ledger, by the harness's own walk over cgroups, files, ACLs and IPC objects."""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

_LIMITS = struct.Struct("<8sIIQIIII128s")
_DEVICE = struct.Struct("<IIQIIII128s")
_ACL_USER = 0x02
SHM = Path("/dev/shm")
_HOLDERS = re.compile(r"crash-(\d+)")  # files that holders make


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look."""

    mount: Path  # of cgroup2
    stem: str  # what the instance's cgroups are called
    hook: Path
    nodes: Path  # the simulated machine's dev


@dataclass(frozen=True, slots=True)
class Limits:
    """What a lease's limits say of it."""

    lease: int
    devices: tuple[tuple[int, int], ...]  # bytes, and how many CUs are in the mask


@dataclass(frozen=True, slots=True)
class Memory:
    """Whose shared memory there is: pids of holders."""

    segments: frozenset[int] = frozenset()
    files: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Outside:
    """What there is outside the ledger."""

    cgroups: dict[int, str]  # by lease, as seen from the mount
    limits: dict[int, Limits]  # by lease
    usage: frozenset[int]
    acls: dict[str, frozenset[int]]  # uids let in, by device node
    strays: tuple[str, ...]  # what no lease can have
    memory: Memory = Memory()


def look(places: Places) -> Outside:
    """Walk everything that an agent changes."""
    strays: list[str] = []
    return Outside(
        _cgroups(places, strays),
        _limits(places.hook / places.stem, strays),
        _usage(places, strays),
        {path.name: _users(path) for path in (places.nodes / "kfd", *(places.nodes / "dri").iterdir())},
        (*strays, *_ipc()),
        _memory(),
    )


def _cgroups(places: Places, strays: list[str]) -> dict[int, str]:
    found: dict[int, str] = {}
    own = places.mount / f"{places.stem}.slice"
    for directory, names, _ in os.walk(places.mount):
        if Path(directory) == places.mount:
            # Other instances' are none of ours; a lease lies in ours, or below a job.
            names[:] = [name for name in names if not name.startswith("gpulease") or name == own.name]
        for name in names:
            path = Path(directory) / name
            match = re.fullmatch(rf"{places.stem}-(\d+)\.slice", name)
            if match:
                if int(match[1]) in found:
                    strays.append(f"a second cgroup {path}")
                found[int(match[1])] = f"/{path.relative_to(places.mount)}"
            elif path.parent == own:
                strays.append(f"cgroup {path}")
    return found


def _limits(directory: Path, strays: list[str]) -> dict[int, Limits]:
    found = {}
    for lease in _numbers(directory, strays):
        files = sorted(path.name for path in (directory / str(lease)).iterdir())
        if files == ["limits"]:
            content = (directory / str(lease) / "limits").read_bytes()
            _, _, size, says, _, count, *_ = _LIMITS.unpack_from(content)
            devices = [_DEVICE.unpack_from(content, _LIMITS.size + at * _DEVICE.size) for at in range(count)]
            masks = [int.from_bytes(device[-1], "little").bit_count() for device in devices]
            found[lease] = Limits(says, tuple((one[2], cus) for one, cus in zip(devices, masks, strict=True)))
        if files != ["limits"] or size != len(content):
            strays.append(f"{directory / str(lease)} holds {files}, or not what it says")
    return found


def _usage(places: Places, strays: list[str]) -> frozenset[int]:
    """The usage files: each in one of several small file systems that say by ``.UID`` whose they are."""
    found: set[int] = set()
    spaces = places.hook / "usage"
    for path in (each for space in spaces.iterdir() for each in space.iterdir()) if spaces.exists() else ():
        match = re.fullmatch(rf"{places.stem}-(\d+)", path.name)
        if match and int(match[1]) not in found:
            found.add(int(match[1]))
        elif match or not re.fullmatch(r"\.\d+", path.name):
            strays.append(str(path))
    return frozenset(found)


def _numbers(directory: Path, strays: list[str]) -> list[int]:
    names = [path.name for path in directory.iterdir()] if directory.exists() else []
    strays += [f"{directory / name}" for name in names if not name.isdecimal()]
    return [int(name) for name in names if name.isdecimal()]


def _users(node: Path) -> frozenset[int]:
    try:
        value = os.getxattr(node, "system.posix_acl_access")
    except OSError:
        return frozenset()
    entries = struct.iter_unpack("<HHI", value[4:])
    return frozenset(who for tag, allowed, who in entries if tag == _ACL_USER and allowed)


def _ipc() -> list[str]:
    """IPC objects that no holder makes: namespace and /dev/shm are the harness's own, so it was the agent."""
    found = [str(path) for path in SHM.iterdir() if not _HOLDERS.fullmatch(path.name)]
    return found + [f"a {name} object" for name in ("sem", "msg") for _ in _listed(name)]


def _memory() -> Memory:
    files = [match for path in SHM.iterdir() if (match := _HOLDERS.fullmatch(path.name))]
    return Memory(
        frozenset(int(line.split()[4]) for line in _listed("shm")),  # cpid
        frozenset(int(match[1]) for match in files),
    )


def _listed(name: str) -> list[str]:
    return Path(f"/proc/sysvipc/{name}").read_text(encoding="ascii").splitlines()[1:]
