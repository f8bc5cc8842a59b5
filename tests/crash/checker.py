"""What a killed agent left, read and judged with nothing of the agent's: own queries, own walk, own formats.

The state of the ledger is read from a copy, as the next agent will find it, so looking changes nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import struct
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

LEDGER = "ledger.sqlite3"
PASSING = {"preparing", "releasing", "lost"}
OPEN = {"preparing", "active"}

_LIMITS = struct.Struct("<8sIIQIIII128s")
_LIMITED_DEVICE = struct.Struct("<IIQIIII128s")
_ACL_USER = 0x02


# -- the ledger ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice's row."""

    device: str
    epoch: int
    pool: str
    cus: frozenset[int]
    shared: bool
    vram_bytes: int
    queue_slots: int
    state: str


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease's row with its anchor, slices and journal."""

    id: int
    state: str
    uid: int
    anchor: str
    armed: bool
    deadline_ns: int | None
    cgroup: str | None
    slices: tuple[Slice, ...]
    effects: tuple[tuple[str, str], ...]  # kind, state

    @property
    def holds(self) -> bool:
        """Whether anything may be there for it: it is on its way or active, or a slice is not free yet."""
        return self.state in OPEN or any(one.state != "free" for one in self.slices)

    def made(self, kind: str) -> bool:
        """Whether its journal has an effect of *kind*."""
        return any(kind == one for one, _ in self.effects)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Everything that the rules are about."""

    leases: dict[int, Lease] = field(default_factory=dict)
    pools: dict[str, int] = field(default_factory=dict)  # bytes that may be granted
    slots: dict[tuple[str, int], int] = field(default_factory=dict)  # by device and epoch
    held: tuple[tuple[str, int, int], ...] = ()  # device, epoch, CU
    requests: dict[str, int] = field(default_factory=dict)  # lease by request id
    damage: tuple[str, ...] = ()

    def digest(self) -> str:
        """A name for the state: what is live, in which states, on which devices; no ids, sizes or times."""
        live = sorted(
            (
                lease.state,
                lease.anchor,
                lease.armed,
                lease.uid == 0,
                [(one.device, one.state) for one in lease.slices],
                lease.effects,
            )
            for lease in self.leases.values()
            if lease.holds or lease.state in PASSING
        )
        return sha256(repr(live).encode()).hexdigest()[:8]


def read_ledger(state: Path, scratch: Path) -> Ledger:
    """The ledger of *state*, from a copy in *scratch*; an empty one where none was made yet."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700)
    for name in (LEDGER, f"{LEDGER}-wal"):
        if (state / name).exists():
            shutil.copyfile(state / name, scratch / name)
    if not (scratch / LEDGER).exists():
        return Ledger()
    try:
        with closing(sqlite3.connect(scratch / LEDGER)) as connection:
            return _read(connection)
    except sqlite3.DatabaseError as error:
        return Ledger(damage=(str(error),))


def _read(connection: sqlite3.Connection) -> Ledger:
    connection.row_factory = sqlite3.Row
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "leases" not in tables:
        return Ledger()
    slices: dict[int, list[Slice]] = defaultdict(list)
    for row in connection.execute("SELECT * FROM slices ORDER BY lease, ordinal"):
        slices[row["lease"]].append(
            Slice(
                row["device"],
                row["epoch"],
                row["pool"],
                frozenset(cus_of(row["cus"])),
                bool(row["shared"]),
                row["vram_bytes"],
                row["queue_slots"],
                row["state"],
            )
        )
    effects: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for row in connection.execute("SELECT lease, kind, state FROM effects ORDER BY id"):
        effects[row["lease"]].append((row["kind"], row["state"]))
    leases = {
        row["id"]: Lease(
            row["id"],
            row["state"],
            row["uid"],
            row["kind"],
            bool(row["armed"]),
            row["deadline_ns"],
            row["home"],
            tuple(slices[row["id"]]),
            tuple(effects[row["id"]]),
        )
        for row in connection.execute(
            "SELECT l.*, l.cgroup AS home, a.kind, a.armed, a.deadline_ns"
            " FROM leases AS l JOIN anchors AS a ON a.lease = l.id"
        )
    }
    damage = [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
    damage += [f"a row of {row[0]} without its {row[2]}" for row in connection.execute("PRAGMA foreign_key_check")]
    return Ledger(
        leases,
        dict(connection.execute("SELECT key, grantable_bytes FROM pools").fetchall()),
        {(row[0], row[1]): row[2] for row in connection.execute("SELECT key, epoch, queue_slots FROM devices")},
        tuple(tuple(row) for row in connection.execute("SELECT device, epoch, cu FROM held_cus")),
        dict(connection.execute("SELECT request_id, lease FROM request_keys").fetchall()),
        tuple(damage),
    )


def cus_of(text: str) -> Iterator[int]:
    """The members of a CU list as it is spelled, "0-7,16"."""
    for span in filter(None, text.split(",")):
        low, _, high = span.partition("-")
        yield from range(int(low), int(high or low) + 1)


# -- outside -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look."""

    mount: Path  # of cgroup2
    stem: str  # what the instance's cgroups are called
    hook: Path
    nodes: Path  # the simulated machine's dev


@dataclass(frozen=True, slots=True)
class Outside:
    """What there is outside the ledger."""

    cgroups: dict[int, str]  # by lease, as seen from the mount
    limits: dict[int, tuple[int, int, tuple[int, ...]]]  # by lease: the id it says, and bytes of each device
    usage: frozenset[int]
    acls: dict[str, frozenset[int]]  # uids let in, by device node
    strays: tuple[str, ...]  # what no lease can have


def look(places: Places) -> Outside:
    """Walk everything that an agent changes."""
    strays: list[str] = []
    return Outside(
        _cgroups(places, strays),
        _limits(places.hook / places.stem, strays),
        frozenset(_numbers(places.hook / "usage" / places.stem, strays)),
        {path.name: _users(path) for path in (places.nodes / "kfd", *(places.nodes / "dri").iterdir())},
        (*strays, *_ipc()),
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


def _limits(directory: Path, strays: list[str]) -> dict[int, tuple[int, int, tuple[int, ...]]]:
    found = {}
    for lease in _numbers(directory, strays):
        files = sorted(path.name for path in (directory / str(lease)).iterdir())
        if files != ["limits"]:
            strays.append(f"{directory / str(lease)} holds {files}")
            continue
        content = (directory / str(lease) / "limits").read_bytes()
        _, _, size, says, _, devices, _, _, _ = _LIMITS.unpack_from(content)
        told = [
            _LIMITED_DEVICE.unpack_from(content, _LIMITS.size + at * _LIMITED_DEVICE.size) for at in range(devices)
        ]
        if size != len(content):
            strays.append(f"{directory / str(lease)}: {len(content)} bytes that say {size}")
        found[lease] = (says, devices, tuple(device[2] for device in told))
    return found


def _numbers(directory: Path, strays: list[str]) -> list[int]:
    names = [path.name for path in directory.iterdir()] if directory.exists() else []
    strays += [f"{directory / name}" for name in names if not name.isdecimal()]
    return [int(name) for name in names if name.isdecimal()]


def _users(node: Path) -> frozenset[int]:
    try:
        value = os.getxattr(node, "system.posix_acl_access")
    except OSError:
        return frozenset()
    return frozenset(who for tag, allowed, who in struct.iter_unpack("<HHI", value[4:]) if tag == _ACL_USER and allowed)


def _ipc() -> list[str]:
    """IPC objects: the harness has a namespace and a /dev/shm of its own, so all are the agent's."""
    kinds = {"shm": "a shared memory segment", "sem": "a semaphore set", "msg": "a message queue"}
    found = [f"/dev/shm/{path.name}" for path in Path("/dev/shm").iterdir()]
    for name, what in kinds.items():
        found += [what for _ in Path(f"/proc/sysvipc/{name}").read_text(encoding="ascii").splitlines()[1:]]
    return found


# -- the rules -----------------------------------------------------------------------------------------------


def at_any_instant(ledger: Ledger, outside: Outside) -> Iterator[str]:
    """What must hold even in the moment of the death, before anything is recovered."""
    yield from ledger.damage
    yield from _held_once(ledger)
    for lease in sorted({*outside.cgroups, *outside.limits, *outside.usage}):
        if lease not in ledger.leases:
            yield f"lease {lease} has changes outside and is not in the ledger"
        elif not ledger.leases[lease].holds:
            yield f"lease {lease} has changes outside and its slices are free"
    yield from outside.strays if not ledger.leases else ()


def when_settled(ledger: Ledger, outside: Outside) -> Iterator[str]:
    """What must hold once an agent has started and looked: the outside is just what the ledger says."""
    yield from at_any_instant(ledger, outside)
    yield from outside.strays
    active = {lease.id: lease for lease in ledger.leases.values() if lease.state == "active"}
    for lease in ledger.leases.values():
        if lease.state in PASSING or lease.state == "failed":
            yield f"lease {lease.id} is {lease.state} after the recovery"
        if lease.state != "active" and lease.holds:
            yield f"lease {lease.id} is {lease.state} and its slices are not free"
    yield from _same("cgroup", active, outside.cgroups)
    yield from _same("hook's limits", {i: l for i, l in active.items() if l.made("hook")}, outside.limits)
    yield from _same("hook's usage", {i: l for i, l in active.items() if l.made("hook")}, outside.usage)
    for lease in active.values():
        if lease.cgroup != outside.cgroups.get(lease.id):
            yield f"lease {lease.id}: its cgroup is {outside.cgroups.get(lease.id)}, the ledger says {lease.cgroup}"
        if lease.id in outside.limits:
            wanted = (lease.id, len(lease.slices), tuple(_shown(one.vram_bytes) for one in lease.slices))
            if outside.limits[lease.id] != wanted:
                yield f"lease {lease.id}: its limits are {outside.limits[lease.id]}, not {wanted}"
    yield from _doors(active, outside)


def _held_once(ledger: Ledger) -> Iterator[str]:
    cus: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    shared: dict[tuple[str, int], frozenset[int]] = {}
    bytes_of: dict[str, int] = defaultdict(int)
    slots_of: dict[tuple[str, int], int] = defaultdict(int)
    for lease in ledger.leases.values():
        for one in lease.slices:
            if one.state == "free":
                continue
            here = (one.device, one.epoch)
            bytes_of[one.pool] += one.vram_bytes
            slots_of[here] += one.queue_slots
            if one.shared and shared.setdefault(here, one.cus) == one.cus:
                continue
            for cu in one.cus:
                cus[(*here, cu)].append(lease.id)
    for (device, epoch), members in shared.items():
        for cu in members:
            cus[device, epoch, cu].append(0)
    for (device, _, cu), holders in cus.items():
        if len(holders) > 1:
            yield f"double grant: CU {cu} of {device} is held by leases {holders}"
    for pool, used in bytes_of.items():
        if used > ledger.pools[pool]:
            yield f"double grant: {used} bytes of {pool} are held, {ledger.pools[pool]} may be"
    for here, used in slots_of.items():
        if used > ledger.slots[here]:
            yield f"double grant: {used} queue slots of {here[0]} are held of {ledger.slots[here]}"
    if set(ledger.held) != set(cus):
        yield f"the CUs that are held are not those of the slices: {len(ledger.held)} against {len(cus)}"


def _same(what: str, wanted: dict[int, Lease], found: dict[int, object] | frozenset[int]) -> Iterator[str]:  # type: ignore[type-arg]
    for lease in sorted(set(found) - set(wanted)):
        yield f"orphan: the {what} of lease {lease}"
    for lease in sorted(set(wanted) - set(found)):
        yield f"lease {lease} is active without the {what}"


def _doors(active: dict[int, Lease], outside: Outside) -> Iterator[str]:
    """A device node lets in just the users that have a lease on it; /dev/kfd those of any."""
    users: dict[str, set[int]] = {name: set() for name in outside.acls}
    for lease in active.values():
        for one in lease.slices:
            for name in (one.device.partition("/")[0], "kfd"):
                users[name] |= {lease.uid} - {0}
    for name, uids in users.items():
        if uids != outside.acls[name]:
            yield f"ACL: {name} lets in {sorted(outside.acls[name])}, and leases are held by {sorted(uids)}"


def _shown(vram_bytes: int) -> int:
    """What the hook is to hold a slice to: its bytes less 64 MiB or 1 %, whichever is more."""
    return max(0, vram_bytes - max(64 << 20, vram_bytes // 100))
