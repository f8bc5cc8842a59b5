"""Rounds: an agent starts, does a few random things and dies in one of them; what is left is looked at."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .aim import Aim, Point
from .checker import at_any_instant, when_answered, when_settled, when_started
from .choices import SECOND_NS, Choices
from .ledger_copy import Ledger
from .tracing import Kill, Refusal
from .word import Promise, Word
from .world import Running, World

MOST_VERBS = 4  # of one run, beside its start
ROUNDS_PER_WORLD = 120
POWER_LOST = 0.5  # of the deaths
REAL_TIME = 0.5  # of the worlds
OLD_LEDGER = 0.3  # of the worlds
# What a start is called, by what it finds: nothing, another version's ledger, none any more, an older one.
STARTS = frozenset({"start", "migrate", "upgrade", "rebuild", "restore"})
LOOKS = STARTS | {"reconcile", "reap"}  # after these the outside must be as the ledger says
REFUSALS = frozenset({"LedgerUnavailable", "DiskFull", "OutsideFault"})  # to the caller: 503
ANSWERED = frozenset({"grant", "attach", "renew"})
MOST_TOLD = 40  # acts before a finding


class Harness:
    """Runs rounds in world after world. *say* gets each line of the report."""

    def __init__(
        self,
        tools: Path,
        seed: int,
        share: tuple[int, int],
        *,
        power: bool,
        errors: bool,
        say: Callable[[str], None],
    ) -> None:
        self.rounds = 0
        self._tools = tools
        self._power = power
        self._errors = errors
        self._say = say
        self._chance = random.Random(seed)
        self._aim = Aim(self._chance, share)
        self._world: World | None = None
        self._word = Word()
        self._choices: Choices
        self._wrong = False  # something was found in this round
        self._failing = False  # whether the disk fails in this verb
        self._refused = False  # whether it failed since the last look at everything that it let be
        self._acts: deque[str] = deque(maxlen=MOST_TOLD)  # what was done last, for a finding's report

    def round(self) -> None:
        """One life and death, and the look at what is left; a world that was found wrong is left behind."""
        if self._world is None or self.rounds % ROUNDS_PER_WORLD == 0:
            self.close()
            real_time = not self._power and self._chance.random() < REAL_TIME
            old = self._chance.random() < OLD_LEDGER
            self._world = World(self._tools, keeps=self._power, real_time=real_time, old=old)
            self._word = Word()
            self._refused = False
            self._choices = Choices(self._chance, self._world, self._word)
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
        state = world.ledger().digest()  # also of one that is lost now
        mishap = self._choices.meanwhile(sidecars=not self._refused)
        ledger = world.ledger()
        running = world.spawn()
        self._acts.append(f"round {self.rounds}")
        lived: list[str] = []
        asked: dict[str, Any] = {}
        verb = mishap or ("start" if ledger.pools else "rebuild" if self._word.forgotten else "migrate")
        last: tuple[str, str, Kill | Refusal] | None = None
        try:
            for _ in range(self._chance.randint(1, MOST_VERBS) + 1):
                kill = self._aimed(verb, state)
                answer = self._ask(world, running, verb, kill, asked)
                if answer is None:
                    last = (verb, state, kill)
                    break
                lived.append(verb)
                before, ledger = ledger, world.ledger()
                self._heard(world, verb, asked, answer, ledger)
                self._started(world, verb, before, ledger)
                if self._wrong:
                    break
                verb, asked = self._choices.verb()
                state = ledger.digest()
        finally:
            traced = world.buried(running)
        # Of each verb that lived, two marks: what came before it, and its own calls.
        for name, calls, disk in zip(lived, traced.counts[1::2], traced.disk[1::2], strict=False):
            self._aim.learn(name, calls, disk)
        for call in traced.refused:
            self._say(f"refused {call}")
        if last is not None:
            self._died(last, traced.killed)
        if not self._wrong:
            self._found(verb, at_any_instant(world.ledger(), world.outside(), self._word.forgotten))
        if self._power and not self._wrong and self._chance.random() < POWER_LOST:
            written_back = self._chance.choice((0.0, 0.5))
            world.lose_power(lambda: self._chance.random() < written_back)
            self._word.rebooted()
        world.pass_time(SECOND_NS)

    def _aimed(self, verb: str, state: str) -> Kill | Refusal:
        """What is to befall the agent in *verb*."""
        refusal = self._aim.refusal(verb, state) if self._errors else None
        self._failing = refusal is not None
        if refusal is None:
            return self._aim.kill(verb, state)
        self._aim.tried[verb, state].add(refusal)
        self._refused = True
        return refusal

    def _started(self, world: World, verb: str, before: Ledger, ledger: Ledger) -> None:
        if verb in STARTS and not self._refused:
            self._found(verb, when_started(before, world.outside()))
            self._found(verb, world.upgraded(before, ledger))

    def _died(self, last: tuple[str, str, Kill | Refusal], call: str | None) -> None:
        verb, state, kill = last
        if call is None:
            self._found(verb, ["the agent ended by itself"])
            return
        point = Point(verb, state, kill.n, kill.side)
        self._aim.tried[verb, state].add(kill)
        self._say(f"kill {point} {call}")

    def _found(self, verb: str, violations: Iterator[str] | list[str]) -> None:
        for violation in violations:
            self._wrong = True
            self._say(f"VIOLATION in round {self.rounds}, {verb}: {violation}")
            while self._acts:
                self._say(self._acts.popleft())

    # -- what is asked, and what was answered -----------------------------------------------------------

    def _ask(
        self, world: World, running: Running, verb: str, kill: Kill | Refusal, asked: dict[str, Any]
    ) -> dict[str, Any] | None:
        world.pass_time(SECOND_NS)
        body = {name: value for name, value in asked.items() if name not in ("holder", "promise")}
        name = "start" if verb in STARTS else verb
        aimed = f" {kill.side} {kill.n}" if kill.n else ""
        self._acts.append(f"  {verb} {body.get('lease', body.get('request_id', ''))}{aimed}")
        answer = running.ask(name, kill, world.clock.now_ns, **body)
        self._acts.append(f"    {answer}")
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
        if "fault" in answer:
            self._faulted(verb, asked, answer)
        elif verb in LOOKS:
            self._looked(world, verb, answer, ledger)
        elif verb == "grant" and "id" in answer:
            self._found(verb, self._word.granted(answer, asked, asked["holder"]))
        elif verb == "backup":
            self._found(verb, self._backed_up(world, Path(asked["target"]), ledger))
        elif "promise" in asked:
            self._answered(world, verb, asked["promise"], answer)
        if verb in ANSWERED and answer.get("state") == "active" and not self._wrong and not self._refused:
            self._found(verb, when_answered(ledger.leases[answer["id"]], world.outside()))

    def _faulted(self, verb: str, asked: dict[str, Any], answer: dict[str, Any]) -> None:
        fault = answer["fault"]
        # A ledger that was lost, and cannot be rebuilt while the disk fails, does not know the lease.
        unknown = fault == "UnknownThing" and self._word.forgotten
        if self._refused and verb not in STARTS and (fault in REFUSALS or unknown):
            self._unanswered(verb, asked)  # done or not: the caller knows as little
        elif fault != "OutsideFault" or not self._word.unanswered.pop(asked.get("request_id"), None):
            # But for the same request again, whose lease ended before it was ready.
            self._found(verb, [f"fault: {fault}: {answer['why']}"])

    def _looked(self, world: World, verb: str, answer: dict[str, Any], ledger: Ledger) -> None:
        if self._failing:
            return  # the next look makes good what could not be done
        self._refused = False
        if answer.get("unready"):
            self._found(verb, [f"the agent takes no grants: {answer['unready']}"])
        outside = world.outside()
        self._found(verb, when_settled(ledger, outside))
        self._found(verb, self._word.check(ledger, outside.memory, world.clock.now_ns))

    def _answered(self, world: World, verb: str, promise: Promise, answer: dict[str, Any]) -> None:
        promise.deadlines, promise.renewing = {answer["deadline_ns"]}, False
        if verb == "attach":
            promise.attached, promise.attaching, promise.unarmed = True, False, False
            if world.real_time and promise.holder.uid and self._chance.random() < 0.7:
                promise.holder.make()
        elif verb == "release":
            promise.may_end = True
            promise.ended = answer["state"] == "released"

    def _backed_up(self, world: World, target: Path, ledger: Ledger) -> Iterator[str]:
        """A backup that was answered is sound, and holds the leases of that moment."""
        world.keep_backup(target)
        copy = world.ledger_of_backup()
        yield from copy.damage
        if copy.leases != ledger.leases:
            yield "the backup differs from the ledger"
