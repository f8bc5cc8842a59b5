"""SQL, compiled from SQLAlchemy's expressions once and sent by the driver itself.

SQLAlchemy takes five times as long as SQLite to look a statement up, to bind it and to wrap what comes of it,
and a grant sends some thirty. Rows are named tuples of the selected columns.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

from sqlalchemy import ClauseElement, Connection, Delete, Insert, SelectBase, Update
from sqlalchemy.dialects.sqlite import dialect

Row: TypeAlias = Any  # a named tuple

_DIALECT = dialect(paramstyle="named")


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a statement: its rows, or how many it changed."""

    rows: list[Row]
    changed: int

    def one(self) -> Row:
        (row,) = self.rows
        return row

    def scalar(self) -> Any:
        """The first column of the only row."""
        return self.one()[0]


class Statement:
    """What is given when it is sent are its parameters, and the columns that it is to write."""

    def __init__(self, clause: ClauseElement) -> None:
        self._clause = clause
        # By the names of what is given: the text, and the parameters that are always the same.
        self._compiled: dict[tuple[str, ...], tuple[str, dict[str, Any]]] = {}

    @property
    def table(self) -> object:
        """What it writes to; None where it only reads."""
        return self._clause.table if isinstance(self._clause, Insert | Update | Delete) else None

    def send(self, connection: Connection, given: Mapping[str, object]) -> Result:
        """Send it within the transaction of *connection*. Raises the driver's own errors."""
        names = tuple(given)
        sql, fixed = self._compiled.get(names) or self._compile(names)
        cursor = connection.connection.cursor()
        try:
            cursor.execute(sql, {**fixed, **given} if fixed else given)
            rows = cursor.fetchall()
            return Result(list(map(self._row, rows)) if rows else [], cursor.rowcount)
        finally:
            cursor.close()

    @cached_property
    def _row(self) -> Callable[[Iterable[Any]], Row]:
        if not isinstance(self._clause, SelectBase):
            return tuple
        return _row_of(tuple(self._clause.selected_columns.keys()))

    def _compile(self, names: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
        writes = None if self.table is None else list(names)
        made = self._clause.compile(
            dialect=_DIALECT, column_keys=writes, compile_kwargs={"render_postcompile": True}
        )
        fixed = {name: value for name, value in made.params.items() if name not in names}
        self._compiled[names] = str(made), fixed
        return self._compiled[names]


@lru_cache(maxsize=256)
def _row_of(names: tuple[str, ...]) -> Callable[[Iterable[Any]], Row]:
    made: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc]
    make: Callable[[Iterable[Any]], Row] = made._make
    return make
