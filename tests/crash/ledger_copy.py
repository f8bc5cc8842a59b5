"""The ledger as a death left it, by queries of the harness's own.

It is read from a copy, as the next agent will find it, so looking changes nothing.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

LEDGER = "ledger.sqlite3"
PASSING = {"preparing", "releasing", "lost"}
OPEN = {"preparing", "active"}


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
    told: bool = False  # that it left shared memory

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
    revision: str | None = None  # of the schema

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


def read_ledger(file: Path, scratch: Path) -> Ledger:
    """The ledger in *file*, from a copy in *scratch*; an empty one where none was made yet."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700)
    for log in ("", "-wal"):
        if (beside := file.with_name(f"{file.name}{log}")).exists():
            shutil.copyfile(beside, scratch / f"{LEDGER}{log}")
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
    told = {lease for (lease,) in connection.execute("SELECT lease FROM events WHERE kind = 'ipc_left'")}
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
            row["id"] in told,
        )
        for row in connection.execute(
            "SELECT l.*, l.cgroup AS home, a.kind, a.armed, a.deadline_ns"
            " FROM leases AS l JOIN anchors AS a ON a.lease = l.id"
        )
    }
    damage = [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
    orphans = connection.execute("PRAGMA foreign_key_check")
    damage += [f"a row of {row[0]} without its {row[2]}" for row in orphans]
    return Ledger(
        leases,
        dict(connection.execute("SELECT key, grantable_bytes FROM pools").fetchall()),
        {
            (row[0], row[1]): row[2]
            for row in connection.execute("SELECT key, epoch, queue_slots FROM devices")
        },
        tuple(tuple(row) for row in connection.execute("SELECT device, epoch, cu FROM held_cus")),
        dict(connection.execute("SELECT request_id, lease FROM request_keys").fetchall()),
        tuple(damage),
        connection.execute("SELECT version_num FROM alembic_version").fetchone()[0],
    )


def cus_of(text: str) -> Iterator[int]:
    """The members of a CU list as it is spelled, "0-7,16"."""
    for span in filter(None, text.split(",")):
        low, _, high = span.partition("-")
        yield from range(int(low), int(high or low) + 1)
