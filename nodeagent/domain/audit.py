"""The ways out of a lease that `nodeagent audit` tries, and what an outcome means for what is stated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from nodeagent.domain.guarantee import Memory

REFUSED, TAKEN = "refused", "taken"  # what an attempt says; anything else is why it could not be made
KFD, RENDER = "KFD, what fits", "render node, what fits"  # the controls: they must be let through


class Level(StrEnum):
    """What is to be said of one way out."""

    HELD = "HELD"
    OPEN = "OPEN"  # it leads out, and the lease states no more
    ELSEWHERE = "ELSEWHERE"  # not for this command to try, here or anywhere
    UNTRIED = "UNTRIED"  # it could not be tried on this node
    BROKEN = "BROKEN"  # it leads out, and the lease states that it does not

    @property
    def exit_code(self) -> int:
        return {Level.UNTRIED: 1, Level.BROKEN: 2}.get(self, 0)


@dataclass(frozen=True, slots=True)
class Way:
    """A way out. *refused_by*: the weakest memory tier that closes it; None: it is closed whatever the tier.

    A refusal proves something only where *control*, the same with less, is let through.
    """

    name: str
    refused_by: Memory | None = None
    control: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one way, on one device where it is one."""

    way: str
    device: str | None
    level: Level
    text: str


WAYS = (
    Way("KFD, more than the slice", Memory.HOOK, KFD),
    Way("KFD, by a system call", Memory.SUPERVISED, KFD),
    Way("KFD, a request of an odd size", Memory.HOOK, KFD),
    Way("KFD, env -i", Memory.SUPERVISED, KFD),
    Way("KFD, setsid and double fork", Memory.HOOK, KFD),
    Way("KFD, GPULEASE_HOOK elsewhere", Memory.HOOK, KFD),
    Way("KFD, a GPU that is not leased", Memory.HOOK, KFD),
    Way("render node, more than the slice", Memory.HOOK, RENDER),
    Way("render node, by a system call", Memory.SUPERVISED, RENDER),
    Way("moving to another cgroup"),
    Way("writing the lease's limits in its cgroup"),
    Way("a daemon of one's own (setsid, double fork)"),
    Way("writing the hook's limits"),
)
# What this command leaves alone, and why; docs/enforcement.md says what came of each elsewhere.
ELSEWHERE = {
    "wider CU masks": "needs a program that makes queues on the GPU",
    "managed memory, memory that others export": "needs a program with ROCm's runtime",
    "PID 1, systemd-run, at, cron, ssh": "goes through other daemons of the node",
    "containers, docker exec": "needs an image, and a lease of a container's",
    "steps of Slurm jobs": "needs a job",
    "ptrace, io_uring, checkpoints": "shown by the project's own tests only",
}
_WEAKEST_LAST = tuple(Memory)  # strongest first


def judge(stated: Memory, outcomes: Mapping[str, Mapping[str, str]]) -> list[Outcome]:
    """What *outcomes*, by device ("" for the lease as a whole) and by way, mean for *stated*."""
    told = [
        _judged(way, device, stated, found)
        for device, found in outcomes.items()
        for way in WAYS
        if way.name in found
    ]
    known = {one.way for one in told}
    told += [
        Outcome(way.name, None, Level.UNTRIED, "nothing came of it") for way in WAYS if way.name not in known
    ]
    return told + [Outcome(name, None, Level.ELSEWHERE, why) for name, why in ELSEWHERE.items()]


def worst(told: list[Outcome]) -> int:
    """The exit code: 0 all was tried and holds, 1 something could not be tried, 2 something broke."""
    return max((one.level.exit_code for one in told), default=0)


def _judged(way: Way, device: str, stated: Memory, found: Mapping[str, str]) -> Outcome:
    level, text = _verdict(way, stated, found[way.name], found)
    return Outcome(way.name, device or None, level, text)


def _verdict(way: Way, stated: Memory, outcome: str, found: Mapping[str, str]) -> tuple[Level, str]:
    promised = way.refused_by is None or _strength(stated) >= _strength(way.refused_by)
    if outcome.startswith(TAKEN):
        if promised:
            return Level.BROKEN, f"{outcome}, and memory {stated} is stated"
        return Level.OPEN, f"{outcome}; memory {way.refused_by} would hold it, {stated} is stated"
    if outcome != REFUSED:
        return Level.UNTRIED, outcome
    if way.control is not None and found.get(way.control) != TAKEN:
        why = found.get(way.control, "was not tried")
        return Level.UNTRIED, f"refused, but so is what fits: {why}; that proves nothing"
    return Level.HELD, "refused"


def _strength(memory: Memory) -> int:
    return -_WEAKEST_LAST.index(memory)
