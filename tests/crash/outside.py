"""What there is outside the ledger, by the harness's own walk over cgroups, files, ACLs and IPC objects."""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from . import beside, hooked
from .beside import Sidecar
from .hooked import Limits, Usage

_ACL_USER = 0x02
SHM = Path("/dev/shm")
_HOLDERS = re.compile(r"crash-(\d+)")  # files that holders make


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look."""

    mount: Path  # of cgroup2
    stem: str  # what the instance's cgroups are called
    hook: Path
    sidecars: Path
    state: Path
    nodes: Path  # the simulated machine's dev


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
    usage: dict[int, Usage]
    sidecars: dict[int, Sidecar | str]
    acls: dict[str, frozenset[int]]  # uids let in, by device node
    strays: tuple[str, ...]  # what no lease can have
    memory: Memory = Memory()
    frozen: frozenset[int] = frozenset()  # leases whose cgroup is

    @property
    def leases(self) -> frozenset[int]:
        """Whose changes there are."""
        return frozenset({*self.cgroups, *self.limits, *self.usage})


def look(places: Places) -> Outside:
    """Walk everything that an agent changes."""
    strays: list[str] = []
    cgroups = _cgroups(places, strays)
    return Outside(
        cgroups,
        hooked.limits(places.hook, places.stem, strays),
        hooked.usage(places.hook, places.stem, strays),
        beside.sidecars(places.sidecars, strays),
        {path.name: _users(path) for path in (places.nodes / "kfd", *(places.nodes / "dri").iterdir())},
        (
            *strays,
            *hooked.others(places.hook, places.stem),
            *beside.others(places.state, places.sidecars),
            *_ipc(),
        ),
        _memory(),
        frozenset(lease for lease, path in cgroups.items() if _frozen(places.mount / path[1:])),
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


def _frozen(cgroup: Path) -> bool:
    try:
        return (cgroup / "cgroup.freeze").read_text(encoding="ascii").strip() != "0"
    except OSError:  # it is being removed
        return False


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
