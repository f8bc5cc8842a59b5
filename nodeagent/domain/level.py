"""How bad a finding of a check is, whichever command looks."""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """How bad it is. UNSEEN: this could not be looked at, and why; it counts as a warning."""

    OK = "OK"
    UNSEEN = "UNSEEN"
    WARN = "WARN"
    FAIL = "FAIL"

    @property
    def exit_code(self) -> int:
        return {Level.OK: 0, Level.UNSEEN: 1, Level.WARN: 1, Level.FAIL: 2}[self]
