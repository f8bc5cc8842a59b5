"""The rules that span rows, as triggers: they hold whatever the code above them gets wrong.

Capacity is checked only when a slice is inserted: a rescan that finds less never breaks a running lease.
The moves come from the domain's own tables, so the two cannot differ.
"""

# ruff: noqa: S608 (every part of this SQL is a constant of the code)

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from nodeagent.domain.lease import LEASE_MOVES, SLICE_MOVES
from nodeagent.ledger.tables import names

ILLEGAL_MOVE = "illegal move"  # starts the message of every refused change of state

State = TypeVar("State", bound=StrEnum)


def _refuse(name: str, on: str, when: str, message: str) -> str:
    return f"CREATE TRIGGER {name} BEFORE {on} WHEN {when}\nBEGIN SELECT RAISE(ABORT, '{message}'); END"


def _not_a_move(moves: Mapping[State, frozenset[State]]) -> str:
    legal = " OR ".join(
        f"(OLD.state = '{origin}' AND NEW.state IN ({names(moves[origin])}))"
        for origin in sorted(moves)
        if moves[origin]
    )
    return f"NOT ({legal})"


_ON_DEVICE = "FROM slices WHERE device = NEW.device AND epoch = NEW.epoch AND slices.state <> 'free'"
_DEVICE = "FROM devices WHERE key = NEW.device AND epoch = NEW.epoch"
_SHARERS = (
    "FROM slices WHERE device = OLD.device AND epoch = OLD.epoch AND shared = 1 AND slices.state <> 'free'"
)
_UNHELD = """EXISTS (SELECT 1 FROM slices AS s WHERE s.lease = NEW.id AND (s.state <> 'held'
    OR s.cu_count <> (SELECT count(*) FROM held_cus AS h WHERE h.device = s.device AND h.epoch = s.epoch
    AND h.slice IS CASE s.shared WHEN 1 THEN NULL ELSE s.id END)))"""

_LEASE_RULES = (
    _refuse(
        "leases_id_grows",
        "INSERT ON leases",
        "NEW.id <= (SELECT lease FROM high_water)",
        "a lease id is never used again",
    ),
    """CREATE TRIGGER leases_high_water AFTER INSERT ON leases
BEGIN INSERT OR REPLACE INTO high_water VALUES (1, NEW.id); END""",
    _refuse(
        "high_water_grows", "UPDATE ON high_water", "NEW.lease < OLD.lease", "a lease id is never used again"
    ),
    _refuse("high_water_stays", "DELETE ON high_water", "1", "a lease id is never used again"),
    _refuse("leases_keep_id", "UPDATE OF id ON leases", "1", "a lease keeps its id"),
    _refuse(
        "leases_begin",
        "INSERT ON leases",
        "NEW.state NOT IN ('queued', 'preparing')",
        f"{ILLEGAL_MOVE}: a lease begins queued or preparing",
    ),
    _refuse(
        "leases_move",
        "UPDATE OF state ON leases",
        _not_a_move(LEASE_MOVES),
        f"{ILLEGAL_MOVE} of a lease",
    ),
    _refuse(
        "leases_active_hold",
        "UPDATE OF state ON leases",
        "NEW.state = 'active' AND (NOT EXISTS (SELECT 1 FROM slices WHERE lease = NEW.id) AND NOT EXISTS"
        f" (SELECT 1 FROM effects WHERE lease = NEW.id AND kind = 'observed') OR {_UNHELD})",
        f"{ILLEGAL_MOVE}: an active lease holds every CU of its slices",
    ),
    _refuse(
        "leases_end_clean",
        "UPDATE OF state ON leases",
        "NEW.ended_ns IS NOT NULL AND EXISTS (SELECT 1 FROM slices"
        " WHERE lease = NEW.id AND state IN ('held', 'cleaning'))",
        f"{ILLEGAL_MOVE}: an ended lease holds no slice",
    ),
    _refuse(
        "leases_released_free",
        "UPDATE OF state ON leases",
        "NEW.state = 'released' AND EXISTS (SELECT 1 FROM slices WHERE lease = NEW.id AND state <> 'free')",
        f"{ILLEGAL_MOVE}: a released lease has free slices only",
    ),
    _refuse(
        "leases_delete_ended",
        "DELETE ON leases",
        "OLD.ended_ns IS NULL OR EXISTS"
        " (SELECT 1 FROM slices WHERE lease = OLD.id AND slices.state <> 'free')",
        "a lease is kept until it ended and its slices are free",
    ),
)

_SLICE_RULES = (
    _refuse(
        "slices_begin",
        "INSERT ON slices",
        "NEW.state <> 'held' OR (SELECT state FROM leases WHERE id = NEW.lease) <> 'preparing'",
        f"{ILLEGAL_MOVE}: a slice begins held, of a preparing lease",
    ),
    _refuse(
        "slices_epoch",
        "INSERT ON slices",
        "NEW.epoch <> (SELECT max(epoch) FROM devices WHERE key = NEW.device)",
        "the epoch of the device is over",
    ),
    _refuse(
        "slices_pool",
        "INSERT ON slices",
        f"NEW.pool <> (SELECT pool {_DEVICE})",
        "the device draws on another pool",
    ),
    _refuse(
        "slices_vram",
        "INSERT ON slices",
        "NEW.vram_bytes + (SELECT coalesce(sum(vram_bytes), 0) FROM slices"
        " WHERE pool = NEW.pool AND slices.state <> 'free')"
        " > (SELECT grantable_bytes FROM pools WHERE key = NEW.pool)",
        "more VRAM than the pool has",
    ),
    _refuse(
        "slices_queue_slots",
        "INSERT ON slices",
        f"NEW.queue_slots + (SELECT coalesce(sum(queue_slots), 0) {_ON_DEVICE})"
        f" > (SELECT queue_slots {_DEVICE})",
        "more queue slots than the device has",
    ),
    _refuse(
        "slices_exclusive",
        "INSERT ON slices",
        f"EXISTS (SELECT 1 {_ON_DEVICE} AND (exclusive = 1 OR NEW.exclusive = 1))",
        "the device is held exclusively, or not idle",
    ),
    _refuse(
        "slices_shared",
        "INSERT ON slices",
        "NEW.shared = 1 AND NEW.cus IS NOT"
        " (SELECT cus FROM shared_sets WHERE device = NEW.device AND epoch = NEW.epoch)",
        "the device has another shared set",
    ),
    _refuse(
        "slices_keep",
        "UPDATE OF id, lease, ordinal, device, epoch, pool, cus, cu_count, shared, exclusive, whole,"
        " vram_bytes, queue_slots ON slices",
        "1",
        "a slice keeps what it holds",
    ),
    _refuse(
        "slices_move",
        "UPDATE OF state ON slices",
        _not_a_move(SLICE_MOVES),
        f"{ILLEGAL_MOVE} of a slice",
    ),
    # Here and nowhere else do held CUs go, so that a slice is free exactly when its CUs are.
    """CREATE TRIGGER slices_free AFTER UPDATE OF state ON slices WHEN NEW.state = 'free'
BEGIN
DELETE FROM held_cus WHERE slice = NEW.id;
DELETE FROM held_cus WHERE NEW.shared = 1 AND slice IS NULL AND device = NEW.device AND epoch = NEW.epoch
    AND NOT EXISTS (SELECT 1 FROM slices WHERE device = NEW.device AND epoch = NEW.epoch AND shared = 1
        AND slices.state <> 'free');
DELETE FROM shared_sets WHERE NEW.shared = 1 AND device = NEW.device AND epoch = NEW.epoch
    AND NOT EXISTS (SELECT 1 FROM slices WHERE device = NEW.device AND epoch = NEW.epoch AND shared = 1
        AND slices.state <> 'free');
END""",
    _refuse(
        "slices_delete_free", "DELETE ON slices", "OLD.state <> 'free'", "a slice is kept until it is free"
    ),
)

_CU_RULES = (
    _refuse(
        "held_cus_exist",
        "INSERT ON held_cus",
        f"NEW.cu >= (SELECT cus {_DEVICE})",
        "the device has no such CU",
    ),
    _refuse(
        "held_cus_owner",
        "INSERT ON held_cus",
        "NEW.slice IS NOT NULL AND NOT EXISTS (SELECT 1 FROM slices WHERE id = NEW.slice AND shared = 0"
        " AND device = NEW.device AND epoch = NEW.epoch AND state = 'held')"
        " OR NEW.slice IS NULL AND NOT EXISTS"
        " (SELECT 1 FROM shared_sets WHERE device = NEW.device AND epoch = NEW.epoch)",
        "a CU is held by a held slice of its device, or by its shared set",
    ),
    _refuse("held_cus_keep", "UPDATE ON held_cus", "1", "a held CU is not handed over"),
    _refuse(
        "held_cus_delete",
        "DELETE ON held_cus",
        "(SELECT state FROM slices WHERE id = OLD.slice) <> 'free'"
        f" OR OLD.slice IS NULL AND EXISTS (SELECT 1 {_SHARERS})",
        "a CU is held until its slice is free",
    ),
    _refuse(
        "shared_sets_keep", "UPDATE ON shared_sets", "1", "a shared set is not changed while it is shared"
    ),
    _refuse(
        "shared_sets_delete",
        "DELETE ON shared_sets",
        f"EXISTS (SELECT 1 {_SHARERS})",
        "a shared set is kept while it is shared",
    ),
)

TRIGGERS: tuple[str, ...] = _LEASE_RULES + _SLICE_RULES + _CU_RULES
