"""The watch of an engine: it looks when something happened, or nothing was told, but only while wanted."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator

import pytest
from fake_engine import FakeEngine
from service_builders import until
from service_world import TurnedClock

from nodeagent.domain.container import Container, Engine, Life
from nodeagent.domain.errors import OutsideFault
from nodeagent.service.engine_watch import EngineWatch, Pace
from nodeagent.service.engines import Engines

QUICK, IDLE = Pace(look=0.01, longest=0.01, least=0), Pace(look=60, longest=60, least=0)


class TellingEngine(FakeEngine):
    """One whose events a test tells. None ends the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.told: queue.Queue[str | None] = queue.Queue()
        self.heard = threading.Event()  # somebody listens

    @contextlib.contextmanager
    def events(self) -> Iterator[Iterator[None]]:
        self._answer()
        self.heard.set()
        yield (None for _ in iter(self.told.get, None))


@pytest.fixture
def engine() -> TellingEngine:
    return TellingEngine()


Watching = tuple[EngineWatch, Engines, list[str]]


@pytest.fixture
def watch(engine: TellingEngine) -> Iterator[Callable[[Pace], Watching]]:
    """A watch at a pace, what it knows, and an item for each time that it announced something."""
    made: list[EngineWatch] = []

    def make(pace: Pace) -> Watching:
        engines, announced = Engines({Engine.DOCKER: engine}, TurnedClock(), unified=True, systemd=False), []
        one = EngineWatch(Engine.DOCKER, engine, engines, lambda: announced.append("changed"), pace)
        made.append(one)
        return one, engines, announced

    yield make
    for one in made:
        one.stop()
    engine.told.put(None)


def test_only_a_change_is_announced(watch: Callable[[Pace], Watching], engine: TellingEngine) -> None:
    """That the engine has gone, and that it is back, too."""
    one, _, announced = watch(IDLE)
    engine.create({})
    for change in (
        lambda: None,
        lambda: setattr(engine, "down", True),
        lambda: setattr(engine, "down", False),
    ):
        change()
        before = len(announced)
        one.look()
        one.look()
        assert len(announced) == before + 1


def test_an_event_is_followed_by_a_look(watch: Callable[[Pace], Watching], engine: TellingEngine) -> None:
    """At once, though the period is long."""
    one, engines, _ = watch(IDLE)
    one.start()
    one.want(True)
    assert engine.heard.wait(20)
    container = engine.create({}, status="running")
    engine.told.put("start")
    held = Container(Engine.DOCKER, id=container)
    until(lambda: engines.life(held) is Life.ALIVE)
    engine.be(container, "exited")
    engine.told.put("die")
    until(lambda: engines.life(held) is Life.ENDED)


def test_a_lost_event_costs_a_period(watch: Callable[[Pace], Watching], engine: TellingEngine) -> None:
    """The end of a container is seen without a word of it, also where the engine tells no events."""
    one, engines, _ = watch(QUICK)
    engine.told.put(None)
    container = engine.create({}, status="running")
    held = Container(Engine.DOCKER, id=container)
    one.start()
    one.want(True)
    until(lambda: engines.life(held) is Life.ALIVE)
    engine.remove(container)
    until(lambda: engines.life(held) is Life.ENDED)


def test_an_engine_that_nobody_wants_is_left_alone(
    watch: Callable[[Pace], Watching], engine: TellingEngine
) -> None:
    """To connect to podman's socket starts podman, and to docker's a docker that was stopped."""
    one, engines, announced = watch(QUICK)
    one.start()
    assert not engine.heard.wait(0.2)
    assert engines.sight(Engine.DOCKER) is None
    assert announced == []


def test_an_engine_that_comes_back_is_heard_again(
    watch: Callable[[Pace], Watching], engine: TellingEngine
) -> None:
    """Its containers count as there meanwhile, and are compared when it answers."""
    one, engines, _ = watch(QUICK)
    container = engine.create({}, status="running")
    held = Container(Engine.DOCKER, id=container)
    one.start()
    one.want(True)
    until(lambda: engines.life(held) is Life.ALIVE)
    engine.down = True
    engine.told.put(None)
    until(lambda: engines.life(held) is Life.UNKNOWN)
    with pytest.raises(OutsideFault):
        one.listen()
    engine.remove(container)
    engine.down = False
    until(lambda: engines.life(held) is Life.ENDED)


def test_a_fault_of_ours_ends_no_watch(watch: Callable[[Pace], Watching], engine: TellingEngine) -> None:
    """Without it no lease of a container would end by its container's end."""
    one, engines, _ = watch(QUICK)
    answers = engine.containers
    engine.containers = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    one.start()
    one.want(True)
    assert engine.heard.wait(20)
    engine.containers = answers  # type: ignore[method-assign]
    until(lambda: engines.sight(Engine.DOCKER) is not None)
