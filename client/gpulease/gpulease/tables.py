"""Tables: in boxes on a terminal that can draw them, else columns that other programs can cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from gpulease.screen import Coloured, Part, Screen, safe

_GAP = "  "
_STATES = {
    **dict.fromkeys(("active", "healthy", "ready"), "green"),
    **dict.fromkeys(("queued", "preparing", "releasing", "draining", "excluded"), "yellow"),
    **dict.fromkeys(("lost", "failed", "quarantined", "unhealthy", "gone"), "red"),
}


def state(text: str, reason: Optional[str] = None) -> Coloured:
    """A state in its colour, with why it is so."""
    return Coloured(f"{text}: {reason}" if reason else text, _STATES.get(text, "bold"))


def table(
    screen: Screen, titles: Sequence[str], rows: Sequence[Sequence[object]], shrink: Optional[int] = None
) -> None:
    """Columns as wide as their widest cell; column *shrink* is cut as far as it takes to fit the screen.

    A cell is text, or text in a colour. Without room for a box the columns stand alone.
    """
    head = [Coloured(title, "bold") for title in titles]
    shown = [[_escaped(cell) for cell in row] for row in rows]
    widths = [max(len(row[at].text) for row in [head, *shown]) for at in range(len(titles))]
    boxed = screen.boxes and _fit(widths, titles, shrink, screen.columns - 3 * len(titles) - 1)
    if not boxed:
        _fit(widths, titles, shrink, screen.columns - len(_GAP) * (len(titles) - 1))
        for row in [head, *shown]:
            screen.line(*_parts(row, widths, "", _GAP, ""))
        return
    screen.line(_rule(widths, "┌┬┐"))
    screen.line(*_parts(head, widths, "│ ", " │ ", " │"))
    screen.line(_rule(widths, "├┼┤"))
    for row in shown:
        screen.line(*_parts(row, widths, "│ ", " │ ", " │"))
    screen.line(_rule(widths, "└┴┘"))


def _escaped(cell: object) -> Coloured:
    return Coloured(safe(cell.text), cell.colour) if isinstance(cell, Coloured) else Coloured(safe(cell), "")


def _fit(widths: list[int], titles: Sequence[str], shrink: Optional[int], room: int) -> bool:
    """Make column *shrink* as narrow as it takes; whether all of them fit into *room* then."""
    if shrink is not None:
        excess = max(0, sum(widths) - room)
        widths[shrink] = max(len(titles[shrink]), widths[shrink] - excess)
    return sum(widths) <= room


def _parts(row: Sequence[Coloured], widths: Sequence[int], left: str, between: str, right: str) -> list[Part]:
    parts: list[Part] = [left]
    for at, (cell, width) in enumerate(zip(row, widths)):  # noqa: B905 -- Python 3.9 has no strict=
        text = cell.text if len(cell.text) <= width else cell.text[: width - 1] + "~"
        parts += [between] if at else []
        parts += [Coloured(text, cell.colour) if cell.colour else text, " " * (width - len(text))]
    return [*parts, right]


def _rule(widths: Sequence[int], corners: str) -> str:
    return corners[0] + corners[1].join("─" * (width + 2) for width in widths) + corners[2]
