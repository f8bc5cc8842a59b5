"""A device drawn as a bar of cells, each a few CUs, with a letter per lease. Pure."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpulease.models import Device, Lease, Slice
from gpulease.screen import Coloured, Part

LETTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits
QUARANTINED = "!"
SHARED = "+"  # several leases have this CU: the device's shared set
BEYOND = "#"  # more leases than letters
_COLOURS = ("cyan", "green", "magenta", "yellow", "blue")


@dataclass(frozen=True)
class Bar:
    """*cells* has one character per *cus_per_cell* CUs; *guessed* says that a lease hides which it has."""

    cells: str
    cus_per_cell: int
    guessed: bool


def letters(leases: Sequence[Lease]) -> dict[int, str]:
    """A letter for each lease, in the order given."""
    return {lease.id: LETTERS[at] if at < len(LETTERS) else BEYOND for at, lease in enumerate(leases)}


def members(cus: str) -> list[int]:
    """The CUs of a list (``0-3,8``). What is no list has no members, as it came from outside."""
    found: list[int] = []
    for item in cus.split(","):
        low, _, high = item.partition("-")
        if low.isdigit() and (not high or high.isdigit()) and int(high or low) < 1 << 16:
            found += range(int(low), int(high or low) + 1)
    return found


def cell_size(device: Device, width: int) -> int:
    """The fewest CUs per cell that make the device fit *width*, best a part or multiple of its row."""
    least = max(1, -(-device.cus // max(1, width)))
    row = device.row or 1
    even = (size for size in range(least, least * 2 + 1) if row % size == 0 or size % row == 0)
    return next(even, least)


def draw(device: Device, leases: Iterable[Lease], names: dict[int, str], width: int, free: str = "·") -> Bar:
    """The device's CUs in order; a cell shows who has the most of it, quarantine before anyone."""
    owners, guessed = _owners(device, leases, names)
    size = cell_size(device, width)
    drawn: Counter[str] = Counter()
    cells = []
    for start in range(0, device.cus, size):
        cell = _cell(owners[start : start + size], drawn) or free
        drawn[cell] += 1
        cells.append(cell)
    return Bar("".join(cells), size, guessed)


def coloured(bar: str, names: dict[int, str], free: str = "·") -> Iterator[Part]:
    """The bar in parts of one colour each."""
    start = 0
    for at in range(1, len(bar) + 1):
        if at < len(bar) and bar[at] == bar[start]:
            continue
        yield Coloured(bar[start:at], "dim" if bar[start] == free else colour_of(bar[start], names))
        start = at


def colour_of(mark: str, names: dict[int, str]) -> str:
    """A lease's colour, by its letter; neighbours' differ."""
    letters = list(names.values())
    at = letters.index(mark) if mark in letters else 0
    return "red" if mark == QUARANTINED else _COLOURS[at % len(_COLOURS)]


def _owners(device: Device, leases: Iterable[Lease], names: dict[int, str]) -> tuple[list[str], bool]:
    """Per CU the character of who has it, ``""`` for nobody."""
    owners = [""] * device.cus
    hidden: list[tuple[str, int]] = []
    for lease in leases:
        for one in lease.slices:
            if one.device != device.key or one.state == "free":
                continue
            mark = _mark(one, names.get(lease.id, BEYOND))
            if one.cus is None:
                hidden.append((mark, one.cu_count or 0))
            for cu in members(one.cus or ""):
                if cu < device.cus:
                    owners[cu] = mark if owners[cu] in ("", mark) else SHARED
    for mark, count in hidden:
        places = [cu for cu, owner in enumerate(owners) if not owner][:count]
        for cu in places:
            owners[cu] = mark
    return owners, bool(hidden)


def _mark(one: Slice, letter: str) -> str:
    return QUARANTINED if one.state == "quarantined" else letter


def _cell(owners: Sequence[str], drawn: Counter[str]) -> str:
    if QUARANTINED in owners:
        return QUARANTINED
    held = Counter(owner for owner in owners if owner)
    # Of two with as much of this cell, the one less seen so far: else a small lease may show nowhere.
    return min(held, key=lambda owner: (-held[owner], drawn[owner]), default="")
