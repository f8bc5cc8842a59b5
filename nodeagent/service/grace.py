"""How the processes of a lease are asked to end, before they are killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from nodeagent.adapters.cgroup import CgroupRef, OpenCgroup

Stages = tuple[tuple[signal.Signals, float], ...]


@dataclass(frozen=True, slots=True)
class Grace:
    """Seconds after each signal, in the order in which they are sent; without any it is not sent.

    A kill in the middle of a GPU operation is what users report memory leaks after (ROCm/mori#473,
    sgl-project/sglang#30431).
    """

    interrupt_seconds: float = 0.0  # SIGINT, on which Python programs unwind
    terminate_seconds: float = 0.0  # SIGTERM
    on_lost: signal.Signals = signal.SIGTERM  # instead of both, where the lease lost its device

    def stages(self, *, lost: bool = False) -> Stages:
        every: Stages = ((signal.SIGINT, self.interrupt_seconds), (signal.SIGTERM, self.terminate_seconds))
        if lost:
            # Who is to be killed at once is not asked.
            every = () if self.on_lost is signal.SIGKILL else ((self.on_lost, self.terminate_seconds),)
        return tuple((number, seconds) for number, seconds in every if seconds > 0)


@dataclass(slots=True)
class _Period:
    stages: Stages
    stage: int
    until: float


class GracePeriods:
    """Where each cgroup is in its stages. An agent that was started anew begins them once more."""

    def __init__(
        self,
        grace: Grace,
        now: Callable[[], float] = time.monotonic,
        lost: Callable[[int], bool] = lambda lease: False,
    ) -> None:
        self._grace = grace
        self._now = now
        self._lost = lost  # whether a lease lost its device
        self._running: dict[CgroupRef, _Period] = {}

    def advance(self, cgroup: OpenCgroup, lease: int) -> str | None:
        """Go on asking those in *cgroup*, which is *lease*'s, to end; None when it was enough: kill them."""
        period = self._running.get(cgroup.ref)
        if period is None:
            stages = self._grace.stages(lost=self._lost(lease))
            period = self._running[cgroup.ref] = _Period(stages, -1, self._now())
        while self._now() >= period.until and period.stage < len(period.stages):
            period.stage += 1
            if period.stage < len(period.stages):
                number, seconds = period.stages[period.stage]
                cgroup.ask(number)
                period.until = self._now() + seconds
        if period.stage == len(period.stages):
            return None
        return f"asked to end by {period.stages[period.stage][0].name}"

    def forget(self, ref: CgroupRef) -> None:
        """They are gone."""
        self._running.pop(ref, None)
