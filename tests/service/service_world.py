"""A clock that stands, a world that a scripted effect changes, and a planner that plans it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nodeagent.service.effects import Arguments, Evidence, Pending, Planned
from nodeagent.service.plan import Planner

SECOND = 1_000_000_000
SCRIPTED = "scripted"


class DeathError(BaseException):
    """The agent dies at this instruction: no handler of its own may run on."""


@dataclass
class TurnedClock:
    """A clock that stands until a test turns it."""

    boot_id: str = "boot-a"
    now_ns: int = 1_000 * SECOND
    now: float = 1_800_000_000.0

    def boot_ns(self) -> int:
        return self.now_ns

    def wall(self) -> float:
        return self.now

    def turn(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND)
        self.now += seconds

    def reboot(self) -> None:
        self.boot_id += "x"
        self.now_ns = 10 * SECOND


@dataclass
class ScriptedEffect:
    """One change in a world outside the agent. *script* says what each part does instead, call by call.

    A script's items: an exception to raise before the act, ``"after"`` with `DeathError` to die after it,
    a `Pending` or its text. A script that has run out lets everything succeed.
    """

    world: set[int] = field(default_factory=set)  # the leases for which the change is made
    script: dict[str, list[Any]] = field(default_factory=dict)
    on_apply: Callable[[int], None] = lambda lease: None
    calls: Counter[str] = field(default_factory=Counter)

    def apply(self, arguments: Arguments) -> Evidence:
        lease = int(arguments["lease"])
        self.on_apply(lease)
        self._step("apply", lambda: self.world.add(lease))
        return {"made": True}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        self._step("verify", lambda: None)
        return {"seen": int(arguments["lease"]) in self.world}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        why = self._step("undo", lambda: self.world.discard(int(arguments["lease"])))
        if why is None:
            return {"gone": True}
        return why if isinstance(why, Pending) else Pending(why)

    def _step(self, part: str, act: Callable[[], None]) -> Pending | str | None:
        self.calls[part] += 1
        left = self.script.get(part, [])
        step = left.pop(0) if left else None
        if isinstance(step, Pending) or (isinstance(step, str) and step != "after"):
            return step
        if isinstance(step, BaseException):
            raise step
        act()
        if step == "after":
            raise DeathError
        return None


class PlannerWithMore(Planner):
    """Plans the scripted effect, too, as a later means of enforcement would be."""

    def home(self, lease_id: int, *rest: Any, **named: Any) -> list[Planned]:
        return [*super().home(lease_id, *rest, **named), Planned(SCRIPTED, {"lease": lease_id})]
