"""What an engine's word means for a lease, and what a container is given."""

from __future__ import annotations

import pytest

from nodeagent.domain.container import (
    Container,
    Engine,
    Life,
    Seen,
    Sighting,
    cgroup_parent,
    inside,
    life_of,
    loading_of,
    over,
)

ID = "a" * 64
UNBOUND, BOUND = Container(Engine.DOCKER), Container(Engine.DOCKER, id=ID)


def seen(status: str) -> Seen:
    return Seen(ID, ("web",), status, {})


@pytest.mark.parametrize(
    ("status", "restarts", "life"),
    [
        ("created", False, Life.WAITING),
        ("configured", False, Life.WAITING),
        ("running", False, Life.ALIVE),
        ("paused", False, Life.ALIVE),
        ("removing", False, Life.ALIVE),
        ("of a later version", False, Life.ALIVE),
        ("restarting", True, Life.ALIVE),
        ("restarting", False, Life.ENDED),
        ("exited", True, Life.ENDED),
        ("stopped", False, Life.ENDED),
        ("dead", False, Life.ENDED),
    ],
)
def test_what_an_engine_says_of_a_container(status: str, restarts: bool, life: Life) -> None:
    """What is not said to have ended is alive; between two runs only where the engine starts it again."""
    assert life_of(seen(status), restarts=restarts) is life


def test_a_container_that_its_engine_does_not_know_has_ended() -> None:
    """It was removed, and its id is nobody's ever again."""
    assert life_of(None, restarts=True) is Life.ENDED


@pytest.mark.parametrize(
    ("held", "armed", "sighting", "is_over"),
    [
        (BOUND, True, Sighting(Life.ALIVE), False),
        (BOUND, True, Sighting(Life.ENDED), True),
        (BOUND, True, Sighting(Life.ENDED, populated=True), False),
        (BOUND, True, Sighting(Life.UNKNOWN), False),
        (BOUND, False, Sighting(Life.WAITING, asker_ended="gone"), False),
        (UNBOUND, False, Sighting(Life.UNKNOWN), False),
        (UNBOUND, False, Sighting(Life.UNKNOWN, asker_ended="gone"), False),
        (UNBOUND, False, Sighting(Life.UNKNOWN, asker_ended="gone", none_has_its_ticket=True), True),
        (UNBOUND, True, Sighting(Life.UNKNOWN, populated=True), False),
        (UNBOUND, True, Sighting(Life.UNKNOWN), True),
    ],
)
def test_when_a_container_is_over(held: Container, armed: bool, sighting: Sighting, is_over: bool) -> None:
    """By its engine's word and an empty cgroup together; an engine that is down is no container's end."""
    assert (over(held, sighting, armed=armed) is not None) is is_over


@pytest.mark.parametrize("name", ["web", ID, ID[:12]])
def test_names_of_a_container(name: str) -> None:
    """Its name, its id, and as much of its id as engines print."""
    assert seen("running").goes_by(name)


@pytest.mark.parametrize("name", ["we", "", "a", ID[:11], "b" * 64])
def test_what_names_no_container(name: str) -> None:
    """Neither a part of a name, nor so little of an id that another could have it."""
    assert not seen("running").goes_by(name)


@pytest.mark.parametrize(
    ("libc", "by_file", "by_variable", "certain"),
    [
        ("glibc-2.36", True, False, True),
        ("glibc-2.17", True, False, True),
        ("glibc-2.12", False, False, True),
        ("musl", False, True, True),
        ("musl-1.2.5", False, True, True),
        ("static", False, False, False),
        ("unknown", True, True, False),
    ],
)
def test_how_an_image_loads_the_hook(libc: str, by_file: bool, by_variable: bool, certain: bool) -> None:
    """By a file that glibc reads, by a variable that musl reads; of an unknown one nothing is stated."""
    loading = loading_of(libc)
    assert (loading.by_file, loading.by_variable, loading.certain) == (by_file, by_variable, certain)
    assert loading.possible is (by_file or by_variable)


def test_devices_are_numbered_anew_inside() -> None:
    """In their old order: programs see none but these. UUIDs stay."""
    assert inside({"ROCR_VISIBLE_DEVICES": "5,2,7"})["ROCR_VISIBLE_DEVICES"] == "1,0,2"
    named: dict[str, str | None] = {"ROCR_VISIBLE_DEVICES": "GPU-1,GPU-2", "X": None}
    assert inside(named) == named
    assert inside({"X": "1"}) == {"X": "1"}


@pytest.mark.parametrize(
    ("engine", "driver", "version", "parent"),
    [
        (Engine.DOCKER, "systemd", "2", "gpulease-7.slice"),
        (Engine.PODMAN, "systemd", "2", "gpulease-7.slice"),
        (Engine.DOCKER, "cgroupfs", "2", "/gpulease.slice/gpulease-7.slice"),
        (Engine.PODMAN, "cgroupfs", "2", "/gpulease.slice/gpulease-7.slice/containers"),
        (Engine.DOCKER, "cgroupfs", "1", None),
        (Engine.PODMAN, "systemd", "1", None),
    ],
)
def test_where_an_engine_is_told_to_put_a_container(
    engine: Engine, driver: str, version: str, parent: str | None
) -> None:
    """By a slice's name under systemd, else by a path, which podman refuses where a slice's name ends it."""
    assert cgroup_parent(engine, driver, version, "/gpulease.slice/gpulease-7.slice") == parent
