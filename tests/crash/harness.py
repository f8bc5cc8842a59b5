"""Rounds: an agent starts, does a few random things and dies in one of them; what is left is looked at."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .checker import at_any_instant, when_settled
from .ledger_copy import LEDGER, Ledger, read_ledger
from .tracing import Kill
from .word import Promise, Word
from .world import NO_KILL, Running, World

SECOND_NS = 10**9
UIDS = (0, 61001, 61002, 61003)
FEW_LIVE, MOST_LIVE = 3, 7
MOST_VERBS = 4  # of one run, beside its start
ROUNDS_PER_WORLD = 120
GIB = 1 << 30
TTL_SECONDS = (30, 120, 900)
START_KILLED, VERB_KILLED = 0.3, 0.6
POWER_LOST = 0.5  # of the deaths
SOMETHING_MEANWHILE = 0.25  # of the starts
DRAWS = 12
REAL_TIME = 0.5  # of the worlds
FIRST_GUESS = 40  # calls of a verb that was never counted
LOOKS = frozenset(
    {"start", "migrate", "reconcile", "reap"}
)  # after these the outside must be as the ledger says


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
    tried: defaultdict[tuple[str, str], set[Kill]] = field(default_factory=lambda: defaultdict(set))
    counts: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

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

    def learn(self, verb: str, calls: int) -> None:
        """A verb that lived made so many calls."""
        self.counts[verb] = [*self.counts[verb][-30:], calls]


class Harness:
    """Runs rounds in world after world. *say* gets each line of the report."""

    def __init__(
        self, tools: Path, seed: int, share: tuple[int, int], *, power: bool, say: Callable[[str], None]
    ) -> None:
        self.rounds = 0
        self._tools = tools
        self._power = power
        self._say = say
        self._chance = random.Random(seed)
        self._aim = Aim(self._chance, share)
        self._world: World | None = None
        self._word = Word()
        self._names = itertools.count(1)
        self._wrong = False  # something was found in this round

    def round(self) -> None:
        """One life and death, and the look at what is left; a world that was found wrong is left behind."""
        if self._world is None or self.rounds % ROUNDS_PER_WORLD == 0:
            self.close()
            real_time = not self._power and self._chance.random() < REAL_TIME
            self._world, self._word = World(self._tools, keeps=self._power, real_time=real_time), Word()
        self.rounds += 1
        self._wrong = False
        self._live(self._world)
        if self._wrong:
            self.close()

    def close(self) -> None:
        """Leave nothing of the world."""
        if self._world is not None:
            self._world.close()
            self._world = None

    # -- one life -------------------------------------------------------------------------------------

    def _live(self, world: World) -> None:
        self._meanwhile(world)
        ledger = world.ledger()
        running = world.spawn()
        lived: list[str] = []
        asked: dict[str, Any] = {}
        verb = "start" if ledger.pools else "migrate"
        last: tuple[str, str, Kill] | None = None
        try:
            for _ in range(self._chance.randint(1, MOST_VERBS) + 1):
                state = ledger.digest()
                kill = self._aim.kill(verb, state)
                answer = self._ask(world, running, verb, kill, asked)
                if answer is None:
                    last = (verb, state, kill)
                    break
                lived.append(verb)
                ledger = world.ledger()
                self._heard(world, verb, asked, answer, ledger)
                if self._wrong:
                    break
                verb, asked = self._choose(world)
        finally:
            traced = world.buried(running)
        # Of each verb that lived, two marks: what came before it, and its own calls.
        for name, calls in zip(lived, traced.counts[1::2], strict=False):
            self._aim.learn(name, calls)
        if last is not None:
            self._died(last, traced.killed)
        if not self._wrong:
            self._found(verb, at_any_instant(world.ledger(), world.outside()))
        if self._power and not self._wrong and self._chance.random() < POWER_LOST:
            written_back = self._chance.choice((0.0, 0.5))
            world.lose_power(lambda: self._chance.random() < written_back)
            self._word.rebooted()
        world.pass_time(SECOND_NS)

    def _meanwhile(self, world: World) -> None:
        """While no agent runs, a holder may end or time pass: what is half done is then to be undone."""
        if self._chance.random() > SOMETHING_MEANWHILE:
            return
        holders = [promise.holder for promise in self._word.live()]
        holders += [asked["holder"] for asked in self._word.unanswered.values()]
        if holders and self._chance.random() < 0.7:
            self._chance.choice(holders).end()
        else:
            world.pass_time(self._chance.choice(TTL_SECONDS) * SECOND_NS)

    def _died(self, last: tuple[str, str, Kill], call: str | None) -> None:
        verb, state, kill = last
        if call is None:
            self._found(verb, ["the agent ended by itself"])
            return
        point = Point(verb, state, kill.n, "after" if kill.after else "before")
        self._aim.tried[verb, state].add(kill)
        self._say(f"kill {point} {call}")

    def _found(self, verb: str, violations: Iterator[str] | list[str]) -> None:
        for violation in violations:
            self._wrong = True
            self._say(f"VIOLATION in round {self.rounds}, {verb}: {violation}")

    # -- what is asked, and what was answered -----------------------------------------------------------

    def _ask(
        self, world: World, running: Running, verb: str, kill: Kill, asked: dict[str, Any]
    ) -> dict[str, Any] | None:
        world.pass_time(SECOND_NS)
        body = {name: value for name, value in asked.items() if name not in ("holder", "promise")}
        name = "start" if verb == "migrate" else verb
        answer = running.ask(name, kill, world.clock.now_ns, **body)
        if answer is None:
            self._unanswered(verb, asked)
        return answer

    def _unanswered(self, verb: str, asked: dict[str, Any]) -> None:
        promise: Promise | None = asked.get("promise")
        if verb == "grant":
            self._word.unanswered[asked["request_id"]] = asked
        elif verb == "release" and promise is not None:
            promise.may_end = True
        elif verb == "renew" and promise is not None:
            promise.renewing = True
        elif verb == "attach" and promise is not None:
            promise.attaching = True

    def _heard(
        self, world: World, verb: str, asked: dict[str, Any], answer: dict[str, Any], ledger: Ledger
    ) -> None:
        if answer.get("fault") == "OutsideFault" and self._word.unanswered.pop(asked.get("request_id"), None):
            return  # the same request again, and its lease ended before it was ready
        if "fault" in answer:
            self._found(verb, [f"fault: {answer['fault']}: {answer['why']}"])
        elif verb in LOOKS:
            if answer.get("unready"):
                self._found(verb, [f"the agent takes no grants: {answer['unready']}"])
            outside = world.outside()
            self._found(verb, when_settled(ledger, outside))
            self._found(verb, self._word.check(ledger, outside.memory, world.clock.now_ns))
        elif verb == "grant" and "id" in answer:
            self._found(verb, self._word.granted(answer, asked, asked["holder"]))
        elif verb == "backup":
            self._found(verb, self._backed_up(world, Path(asked["target"]), ledger))
        elif "promise" in asked:
            self._answered(world, verb, asked["promise"], answer)

    def _answered(self, world: World, verb: str, promise: Promise, answer: dict[str, Any]) -> None:
        promise.deadlines, promise.renewing = {answer["deadline_ns"]}, False
        if verb == "attach":
            promise.attached, promise.attaching = True, False
            if world.real_time and promise.holder.uid and self._chance.random() < 0.7:
                promise.holder.make()
        elif verb == "release":
            promise.may_end = True
            promise.ended = answer["state"] == "released"

    def _backed_up(self, world: World, target: Path, ledger: Ledger) -> Iterator[str]:
        """A backup that was answered is sound, and holds the leases of that moment."""
        (world.base / "backup-copy").mkdir(exist_ok=True)
        (world.base / "backup-copy" / LEDGER).write_bytes(target.read_bytes())
        copy = read_ledger(world.base / "backup-copy", world.base / "copy")
        target.unlink()
        yield from copy.damage
        if copy.leases != ledger.leases:
            yield "the backup differs from the ledger"

    # -- what to do next --------------------------------------------------------------------------------

    def _choose(self, world: World) -> tuple[str, dict[str, Any]]:
        """A verb that makes sense now, with what it needs."""
        live = [
            promise
            for promise in self._word.live()
            if not promise.must_end(world.clock.now_ns + 5 * SECOND_NS)
        ]
        attachable = [each for each in live if not each.attached and each.holder.alive()]
        repeatable = [asked for asked in self._word.unanswered.values() if asked["holder"].alive()]
        timed = [each for each in live if each.anchor == "ttl"]
        mortal = [each for each in live if each.anchor not in ("external", "ttl" * world.real_time)]
        choices: list[tuple[float, Callable[[], tuple[str, dict[str, Any]]]]] = [
            (
                6.0 if len(live) < FEW_LIVE else 3.0 if len(live) < MOST_LIVE else 0.0,
                lambda: self._grant(world),
            ),
            (3.0 if repeatable else 0.0, lambda: self._again(repeatable)),
            (1.0, lambda: ("reconcile", {})),
            (0.7, lambda: self._backup(world)),
            (3.0 if attachable else 0.0, lambda: self._attach(attachable)),
            (1.0 if timed else 0.0, lambda: self._renew(timed)),
            (2.0 if live else 0.0, lambda: self._release(live)),
            (2.0 if mortal else 0.0, lambda: self._reap(world, mortal)),
        ]
        (_, chosen), *_ = self._chance.choices(choices, [weight for weight, _ in choices])
        return chosen()

    def _grant(self, world: World) -> tuple[str, dict[str, Any]]:
        uid = self._chance.choice(UIDS)
        anchor = self._chance.choice(("ttl", "process", "cgroup", *(("external",) if uid == 0 else ())))
        holder = world.holder(uid, in_job=self._chance.random() < 0.5)
        return "grant", {
            "holder": holder,
            "uid": uid,
            "pid": holder.pid,
            "anchor": anchor,
            "ttl": self._chance.choice(TTL_SECONDS) if anchor == "ttl" else None,
            "request_id": f"request-{next(self._names)}",
            "cus": self._chance.choice((2, 4, 8, 16)),
            "vram_bytes": self._chance.randint(1, 3) * GIB // 2,
        }

    def _again(self, asked: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
        """The same request, as a client whose answer never came sends it."""
        return "grant", self._chance.choice(asked)

    def _backup(self, world: World) -> tuple[str, dict[str, Any]]:
        target = world.base / f"backup-{next(self._names)}"
        return "backup", {"state": str(world.state), "target": str(target)}

    def _attach(self, leases: list[Promise]) -> tuple[str, dict[str, Any]]:
        promise = self._chance.choice(leases)
        return "attach", {**_of(promise), "pid": promise.holder.pid}

    def _renew(self, leases: list[Promise]) -> tuple[str, dict[str, Any]]:
        return "renew", {**_of(self._chance.choice(leases)), "ttl": self._chance.choice(TTL_SECONDS)}

    def _release(self, leases: list[Promise]) -> tuple[str, dict[str, Any]]:
        return "release", _of(self._chance.choice(leases))

    def _reap(self, world: World, leases: list[Promise]) -> tuple[str, dict[str, Any]]:
        """End a holder, or let its time pass: the next look must end the lease."""
        promise = self._chance.choice(leases)
        deadlines = [deadline for deadline in promise.deadlines if deadline is not None]
        if promise.anchor == "ttl" and deadlines:
            world.pass_time(max(0, max(deadlines) - world.clock.now_ns))
        else:
            promise.holder.end()
        return "reap", {}


def _of(promise: Promise) -> dict[str, Any]:
    return {"promise": promise, "uid": promise.holder.uid, "lease": promise.id}
