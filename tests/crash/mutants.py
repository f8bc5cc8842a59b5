"""Agents with two steps in the wrong order: each must be found, or the harness proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nodeagent.domain.lease import SliceState
from nodeagent.ledger import engine
from nodeagent.ledger.faults import DiskFull
from nodeagent.ledger.ledger import Ledger
from nodeagent.ledger.transaction import Transaction


def freed_before_undone() -> None:
    """A release frees its slices as it begins, and only then undoes what its journal says was done."""
    move = Transaction.move_slices

    def freed_at_once(self: Transaction, lease_id: int, to: SliceState, **rest: Any) -> None:
        move(self, lease_id, to, **rest)
        if to is SliceState.CLEANING:
            move(self, lease_id, SliceState.FREE)

    Transaction.move_slices = freed_at_once  # type: ignore[method-assign]


def never_synced() -> None:
    """The ledger answers before its rows are on disk."""
    engine._PRAGMAS = tuple(
        "synchronous=OFF" if pragma.startswith("synchronous") else pragma for pragma in engine._PRAGMAS
    )


def errors_ignored() -> None:
    """What the disk did not take is answered as if it had."""
    write = Ledger.write

    @contextmanager
    def careless(self: Ledger, *, release: bool = False) -> Iterator[Transaction]:
        begun = False
        try:
            with write(self, release=release) as tx:
                begun = True
                yield tx
        except DiskFull:
            if not begun:
                raise

    Ledger.write = careless  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    "freed-before-undone": freed_before_undone,
    "never-synced": never_synced,
    "errors-ignored": errors_ignored,
}
