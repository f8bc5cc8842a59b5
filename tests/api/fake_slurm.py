"""Slurm's side of an agent that lives in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nodeagent.domain.slurm import Verdict, Word
from nodeagent.service.orders import Caller


@dataclass
class FakeSlurm:
    """Gives every job the same answer, and keeps the bodies."""

    verdict: Verdict = Verdict(Word.NONE)
    lines: tuple[str, ...] = ("none",)
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def prolog(self, caller: Caller, body: bytes, wait_seconds: float = 0) -> Verdict:
        self.calls.append(("prolog", body, wait_seconds))
        return self.verdict

    def epilog(self, caller: Caller, body: bytes, wait_seconds: float = 0) -> Verdict:
        self.calls.append(("epilog", body, wait_seconds))
        return self.verdict

    def task(self, caller: Caller, body: bytes) -> tuple[str, ...]:
        self.calls.append(("task", body))
        return self.lines
