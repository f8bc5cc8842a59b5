"""A row of the tables: what a check says of some facts."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.domain.doctor import Level

OK, UNSEEN, WARN, FAIL = Level.OK, Level.UNSEEN, Level.WARN, Level.FAIL


@dataclass(frozen=True, slots=True)
class Case:
    """*said* is a part of the text: a finding names what is wrong."""

    check: str
    facts: object
    level: Level
    said: str = ""
