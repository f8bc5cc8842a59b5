"""How the processes of a lease are asked to end, before they are killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from nodeagent.adapters.cgroup import CgroupRef, OpenCgroup


@dataclass(frozen=True, slots=True)
class Grace:
    """Seconds after each signal, in the order in which they are sent; without any it is not sent.

    A kill in the middle of a GPU operation is what users report memory leaks after (ROCm/mori#473,
    sgl-project/sglang#30431).
    """

    interrupt_seconds: float = 0.0  # SIGINT, on which Python programs unwind
    terminate_seconds: float = 0.0  # SIGTERM

    @property
    def stages(self) -> tuple[tuple[signal.Signals, float], ...]:
        every = ((signal.SIGINT, self.interrupt_seconds), (signal.SIGTERM, self.terminate_seconds))
        return tuple((number, seconds) for number, seconds in every if seconds > 0)


@dataclass(slots=True)
class _Parting:
    stage: int
    until: float


class Farewell:
    """Takes leave of cgroups, each at its own pace. An agent that was started anew begins once more."""

    def __init__(self, grace: Grace, now: Callable[[], float] = time.monotonic) -> None:
        self._stages = grace.stages
        self._now = now
        self._partings: dict[CgroupRef, _Parting] = {}

    def bid(self, cgroup: OpenCgroup) -> str | None:
        """Go on asking the processes of *cgroup* to end; None when that was enough: kill them now."""
        parting = self._partings.get(cgroup.ref)
        if parting is None:
            parting = self._partings[cgroup.ref] = _Parting(-1, self._now())
        while self._now() >= parting.until and parting.stage < len(self._stages):
            parting.stage += 1
            if parting.stage < len(self._stages):
                number, seconds = self._stages[parting.stage]
                cgroup.ask(number)
                parting.until = self._now() + seconds
        if parting.stage == len(self._stages):
            return None
        return f"asked to end by {self._stages[parting.stage][0].name}"

    def forget(self, ref: CgroupRef) -> None:
        """They are gone."""
        self._partings.pop(ref, None)
