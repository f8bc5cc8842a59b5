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
            # A kill needs no farewell.
            every = () if self.on_lost is signal.SIGKILL else ((self.on_lost, self.terminate_seconds),)
        return tuple((number, seconds) for number, seconds in every if seconds > 0)


@dataclass(slots=True)
class _Parting:
    stages: Stages
    stage: int
    until: float


class Farewell:
    """Takes leave of cgroups, each at its own pace. An agent that was started anew begins once more."""

    def __init__(
        self,
        grace: Grace,
        now: Callable[[], float] = time.monotonic,
        lost: Callable[[int], bool] = lambda lease: False,
    ) -> None:
        self._grace = grace
        self._now = now
        self._lost = lost  # whether a lease lost its device
        self._partings: dict[CgroupRef, _Parting] = {}

    def bid(self, cgroup: OpenCgroup, lease: int) -> str | None:
        """Go on asking those in *cgroup*, which is *lease*'s, to end; None when it was enough: kill them."""
        parting = self._partings.get(cgroup.ref)
        if parting is None:
            stages = self._grace.stages(lost=self._lost(lease))
            parting = self._partings[cgroup.ref] = _Parting(stages, -1, self._now())
        while self._now() >= parting.until and parting.stage < len(parting.stages):
            parting.stage += 1
            if parting.stage < len(parting.stages):
                number, seconds = parting.stages[parting.stage]
                cgroup.ask(number)
                parting.until = self._now() + seconds
        if parting.stage == len(parting.stages):
            return None
        return f"asked to end by {parting.stages[parting.stage][0].name}"

    def forget(self, ref: CgroupRef) -> None:
        """They are gone."""
        self._partings.pop(ref, None)
