"""Where agents are killed, or their disk fails: each time somewhere else, as far as that goes."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

from .tracing import Kill, Refusal
from .world import NO_KILL

START_KILLED, VERB_KILLED = 0.3, 0.6
REFUSED, LASTING = 0.4, 0.3
DRAWS = 12
FIRST_GUESS = 40  # calls of a verb that was never counted


@dataclass(frozen=True, slots=True)
class Point:
    """Where an agent was killed."""

    verb: str
    state: str  # of the ledger, before the verb
    n: int
    side: str

    def __str__(self) -> str:
        return f"{self.verb} {self.state} n={self.n} {self.side}"


@dataclass
class Aim:
    """Chooses where to kill: where it was not done yet, within the calls that such a verb makes."""

    chance: random.Random
    share: tuple[int, int]  # which of how many workers: each has calls of its own
    tried: defaultdict[tuple[str, str], set[Kill | Refusal]] = field(default_factory=lambda: defaultdict(set))
    counts: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    disk: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def kill(self, verb: str, state: str) -> Kill:
        if self.chance.random() > (START_KILLED if verb == "start" else VERB_KILLED):
            return NO_KILL
        mine, workers = self.share
        for _ in range(DRAWS):
            calls = self.chance.choice(self.counts[verb] or [FIRST_GUESS])
            kill = Kill(self.chance.randint(1, max(1, calls)), self.chance.random() < 0.5)
            if kill.n % workers == mine and kill not in self.tried[verb, state]:
                return kill
        return NO_KILL  # it was killed nearly everywhere here: let it live, and come to other states

    def refusal(self, verb: str, state: str) -> Refusal | None:
        """A write or sync that is to fail, or none."""
        if self.chance.random() > REFUSED:
            return None
        calls = self.chance.choice(self.disk[verb] or [FIRST_GUESS])
        refusal = Refusal(self.chance.randint(1, max(1, calls)), self.chance.random() < LASTING)
        return None if refusal in self.tried[verb, state] else refusal

    def learn(self, verb: str, calls: int, disk: int) -> None:
        """A verb that lived made so many calls, and so many of them to the disk."""
        self.counts[verb] = [*self.counts[verb][-30:], calls]
        self.disk[verb] = [*self.disk[verb][-30:], disk]
