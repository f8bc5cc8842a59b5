"""Whether the database is sound: SQLite's own checks, and that slices hold just what they say."""

from __future__ import annotations

import sqlite3

_MOST = 10  # problems of one kind that are told

# A lease that is preparing or later holds a row per CU, or its device's shared set does.
_UNHELD = """
SELECT s.id, s.lease, s.cu_count, (
    SELECT count(*) FROM held_cus AS h WHERE h.device = s.device AND h.epoch = s.epoch
    AND h.slice IS CASE s.shared WHEN 1 THEN NULL ELSE s.id END) AS held
FROM slices AS s WHERE s.state <> 'free' AND s.cu_count <> held LIMIT ?
"""
_STRAY = """
SELECT h.device, h.cu FROM held_cus AS h LEFT JOIN slices AS s ON s.id = h.slice
WHERE CASE WHEN h.slice IS NOT NULL THEN s.id IS NULL OR s.state = 'free' ELSE NOT EXISTS (
    SELECT 1 FROM slices AS o WHERE o.device = h.device AND o.epoch = h.epoch AND o.shared = 1
    AND o.state <> 'free') END LIMIT ?
"""


def problems(connection: sqlite3.Connection) -> tuple[str, ...]:
    """What is wrong, in words; nothing when all is well.

    Raises:
        sqlite3.DatabaseError: the file is too broken to be checked.
    """
    quick = [str(row[0]) for row in connection.execute(f"PRAGMA quick_check({_MOST})")]
    if quick != ["ok"]:
        return tuple(quick)
    foreign = connection.execute("PRAGMA foreign_key_check").fetchmany(_MOST)
    unheld = connection.execute(_UNHELD, (_MOST,))
    stray = connection.execute(_STRAY, (_MOST,))
    return (
        *(f"{table}: row {row} refers to a missing row of {parent}" for table, row, parent, _ in foreign),
        *(
            f"slice {each} of lease {lease} says {count} CUs and holds {held}"
            for each, lease, count, held in unheld
        ),
        *(f"CU {cu} of {device} is held by nothing" for device, cu in stray),
    )
