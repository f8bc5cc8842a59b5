"""The ledger's tables: STRICT, so that SQLite itself keeps the column types. Rules over rows: triggers.py.

``*_ns`` is boot time in ns, ``at`` the wall clock in seconds (display only), JSON and CU lists are TEXT.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from sqlalchemy import (
    REAL,
    CheckConstraint,
    Column,
    ColumnElement,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    func,
    text,
)

from nodeagent.domain.lease import ENDED, AnchorKind, HolderKind, LeaseState, SliceState
from nodeagent.domain.records import EffectState
from nodeagent.domain.request import Shape

# Spelled as literals, because SQLite uses a partial index only where the query repeats its condition.
NOT_FREE = text("slices.state <> 'free'")
NOT_ENDED = text("leases.ended_ns IS NULL")

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def names(states: Iterable[StrEnum]) -> str:
    """Spell states as an SQL list, in a stable order."""
    return ", ".join(f"'{state}'" for state in sorted(states))


def member(name: str) -> ColumnElement[int]:
    """Each number in the JSON list that is the parameter *name*: SQLite bounds the number of parameters."""
    return func.json_each(bindparam(name)).table_valued("value").c.value


def _one_of(column: str, kind: type[StrEnum]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({names(kind)})", name=column)


def _flag(column: str) -> CheckConstraint:
    return CheckConstraint(f"{column} IN (0, 1)", name=column)


def _not_negative(column: str) -> CheckConstraint:
    return CheckConstraint(f"{column} >= 0", name=column)


boots = Table(
    "boots",
    metadata,
    Column("boot_id", Text, primary_key=True),
    Column("started_ns", Integer, nullable=False),
    Column("at", REAL, nullable=False),
    sqlite_strict=True,
)

pools = Table(
    "pools",
    metadata,
    Column("key", Text, primary_key=True),
    Column("region", Text, nullable=False),
    Column("vram_bytes", Integer, nullable=False),
    Column("grantable_bytes", Integer, nullable=False),
    _not_negative("grantable_bytes"),
    sqlite_strict=True,
)

devices = Table(
    "devices",
    metadata,
    Column("key", Text, primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("pool", ForeignKey("pools.key"), nullable=False),
    Column("cus", Integer, nullable=False),
    Column("queue_slots", Integer, nullable=False),
    Column("compute_partition", Text),
    Column("memory_partition", Text),
    _not_negative("cus"),
    _not_negative("queue_slots"),
    sqlite_strict=True,
)

# One row: the highest lease id ever given, which outlives the pruning of the leases.
high_water = Table(
    "high_water",
    metadata,
    Column("row", Integer, primary_key=True),
    Column("lease", Integer, nullable=False),
    CheckConstraint("row = 1", name="one"),
    sqlite_strict=True,
)

leases = Table(
    "leases",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("state", Text, nullable=False),
    Column("holder_kind", Text, nullable=False),
    Column("holder_id", Text, nullable=False),
    Column("uid", Integer, nullable=False),
    Column("gid", Integer, nullable=False),
    Column("charged_uid", Integer, nullable=False),
    Column("request", Text, nullable=False),
    Column("request_id", Text),
    Column("boot_id", ForeignKey("boots.boot_id"), nullable=False),
    Column("created_ns", Integer, nullable=False),
    Column("created_at", REAL, nullable=False),
    Column("wait_until_ns", Integer),
    Column("guarantee", Text, nullable=False),
    Column("environment", Text),
    Column("cgroup", Text),
    Column("ended_ns", Integer),
    Column("ended_at", REAL),
    Column("reason", Text),
    CheckConstraint("id > 0", name="id"),
    _one_of("state", LeaseState),
    _one_of("holder_kind", HolderKind),
    CheckConstraint(f"(state IN ({names(ENDED)})) = (ended_ns IS NOT NULL)", name="ended"),
    CheckConstraint("(ended_ns IS NULL) = (ended_at IS NULL)", name="ended_at"),
    sqlite_strict=True,
)
Index("ix_leases_live", leases.c.charged_uid, sqlite_where=NOT_ENDED)
Index("ix_leases_uid", leases.c.uid, leases.c.id)
Index("ix_leases_holder", leases.c.holder_kind, leases.c.holder_id, leases.c.id)
Index("ix_leases_ended", leases.c.ended_at)

# Of jobs alone: Slurm's account, where it tells one.
accounts = Table(
    "accounts",
    metadata,
    Column("lease", ForeignKey("leases.id", ondelete="CASCADE"), primary_key=True),
    Column("account", Text, nullable=False),
    sqlite_strict=True,
)

anchors = Table(
    "anchors",
    metadata,
    Column("lease", ForeignKey("leases.id", ondelete="CASCADE"), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("armed", Integer, nullable=False),
    Column("deadline_ns", Integer),
    Column("ttl_seconds", Integer),
    Column("pid", Integer),
    Column("start_time", Integer),
    Column("cgroup", Text),
    Column("inode", Integer),
    Column("container", Text),  # JSON
    _one_of("kind", AnchorKind),
    _flag("armed"),
    sqlite_strict=True,
)

slices = Table(
    "slices",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("lease", ForeignKey("leases.id", ondelete="CASCADE"), nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("device", Text, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("pool", ForeignKey("pools.key"), nullable=False),
    Column("cus", Text, nullable=False),
    Column("cu_count", Integer, nullable=False),
    Column("shared", Integer, nullable=False),
    Column("exclusive", Integer, nullable=False),
    Column("whole", Integer, nullable=False),
    Column("cu_requested", Integer, nullable=False),
    Column("effective_cus", Integer, nullable=False),
    Column("vram_bytes", Integer, nullable=False),
    Column("queue_slots", Integer, nullable=False),
    Column("shape", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    ForeignKeyConstraint(["device", "epoch"], ["devices.key", "devices.epoch"]),
    UniqueConstraint("lease", "ordinal"),
    _not_negative("ordinal"),
    _not_negative("cu_count"),
    _not_negative("vram_bytes"),
    _not_negative("queue_slots"),
    _flag("shared"),
    _flag("exclusive"),
    _flag("whole"),
    _one_of("shape", Shape),
    _one_of("state", SliceState),
    sqlite_strict=True,
)
Index("ix_slices_live_device", slices.c.device, slices.c.epoch, sqlite_where=NOT_FREE)
Index("ix_slices_live_pool", slices.c.pool, sqlite_where=NOT_FREE)
Index("ix_slices_device", slices.c.device, slices.c.lease)

# A device's one shared set: there as long as a slice shares it.
shared_sets = Table(
    "shared_sets",
    metadata,
    Column("device", Text, primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("cus", Text, nullable=False),
    ForeignKeyConstraint(["device", "epoch"], ["devices.key", "devices.epoch"]),
    sqlite_strict=True,
)

# Rows only while held, so that the primary key says: no CU is held twice. No slice: the shared set's.
held_cus = Table(
    "held_cus",
    metadata,
    Column("device", Text, primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("cu", Integer, primary_key=True),
    Column("slice", ForeignKey("slices.id")),
    _not_negative("cu"),
    ForeignKeyConstraint(["device", "epoch"], ["devices.key", "devices.epoch"]),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
Index("ix_held_cus_slice", held_cus.c.slice)

effects = Table(
    "effects",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("lease", ForeignKey("leases.id", ondelete="CASCADE"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("arguments", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("evidence", Text),
    Column("at_ns", Integer, nullable=False),
    _one_of("state", EffectState),
    sqlite_strict=True,
    sqlite_autoincrement=True,
)
Index("ix_effects_lease", effects.c.lease)

request_keys = Table(
    "request_keys",
    metadata,
    Column("uid", Integer, primary_key=True, autoincrement=False),
    Column("request_id", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("lease", ForeignKey("leases.id", ondelete="CASCADE"), nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("at_ns", Integer, nullable=False),
    sqlite_strict=True,
)
Index("ix_request_keys_lease", request_keys.c.lease)
Index("ix_request_keys_at_ns", request_keys.c.at_ns)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("uid", Integer),
    Column("lease", Integer),  # no foreign key: events may outlive leases
    Column("device", Text),
    Column("reason", Text),
    Column("data", Text),
    Column("size", Integer, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("boot_ns", Integer, nullable=False),
    Column("at", REAL, nullable=False),
    Column("count", Integer, nullable=False),  # of the same that came one after the other, as one row
    Column("first_at", REAL, nullable=False),
    sqlite_strict=True,
    sqlite_autoincrement=True,
)
Index("ix_events_lease", events.c.lease, events.c.id)

drains = Table(
    "drains",
    metadata,
    Column("device", Text, primary_key=True),
    Column("reason", Text),
    Column("uid", Integer, nullable=False),
    Column("until_ns", Integer),
    Column("until_at", REAL),
    Column("boot_id", Text, nullable=False),
    Column("at", REAL, nullable=False),
    sqlite_strict=True,
)
