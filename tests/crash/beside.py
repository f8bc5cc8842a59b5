"""What the agent keeps beside its ledger: the state directory's other files, and live leases' sidecars."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .ledger_copy import Lease, cus_of

# Also what a death leaves and the next write of the same takes; of a journal, one that is void.
_STATE = re.compile(
    r"gate\.(json|new)|(ids|names|baselines|cards)|\.(ids|names|baselines|cards)\.new|reserve"
    r"|ledger\.sqlite3(-wal|-shm|-journal|\.migrate\.lock|\.before-upgrade-from-\w+(\.\d+)?)?"
)


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A lease as told beside the ledger: all that it takes to put it back."""

    id: int
    state: str
    uid: int
    anchor: str
    armed: bool
    deadline_ns: int | None
    cgroup: str | None
    slices: tuple[tuple[str, int, frozenset[int], int, int], ...]  # device, epoch, CUs, bytes, queue slots
    effects: tuple[str, ...]  # kinds


def sidecar_for(lease: Lease) -> Sidecar:
    """What the sidecar of *lease* has to say."""
    return Sidecar(
        lease.id,
        lease.state,
        lease.uid,
        lease.anchor,
        lease.armed,
        lease.deadline_ns,
        lease.cgroup,
        tuple((one.device, one.epoch, one.cus, one.vram_bytes, one.queue_slots) for one in lease.slices),
        tuple(kind for kind, _ in lease.effects),
    )


def sidecars(directory: Path, strays: list[str]) -> dict[int, Sidecar | str]:
    """By lease; in place of one that cannot be read: why."""
    found: dict[int, Sidecar | str] = {}
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        match = re.fullmatch(r"(\d+)\.json", path.name)
        if match is None:
            strays.append(str(path))
            continue
        try:
            found[int(match[1])] = _parsed(json.loads(path.read_bytes()))
        except (KeyError, TypeError, ValueError) as error:
            found[int(match[1])] = f"{path}: {error!r}"
    return found


def _parsed(told: dict[str, Any]) -> Sidecar:
    lease, anchor = told["lease"], told["anchor"]
    return Sidecar(
        lease["id"],
        lease["state"],
        lease["uid"],
        anchor["kind"],
        bool(anchor["armed"]),
        anchor["deadline_ns"],
        lease["cgroup"],
        tuple(
            (
                row["device"],
                row["epoch"],
                frozenset(cus_of(row["cus"])),
                row["vram_bytes"],
                row["queue_slots"],
            )
            for row in told["slices"]
        ),
        tuple(row["kind"] for row in told["effects"]),
    )


def others(state: Path, directory: Path) -> Iterator[str]:
    """Files of the state directory that no agent needs, and whatever of both others could open."""
    for path in state.iterdir():
        if path.is_file() and not _STATE.fullmatch(path.name):
            yield str(path)
    closed = [path for path in (state, directory, directory.parent) if path.exists()]
    for path in (*closed, *state.glob("ledger*"), *directory.glob("*")):
        if (status := path.lstat()).st_uid or stat.S_IMODE(status.st_mode) & 0o077:
            yield f"{path} is not root's alone"
