"""Containers that hold leases: what an engine says of one, and what that means for its lease."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeGuard

# What is found at these paths inside, whatever the image.
LIMITS, USAGE, NOTE = "/etc/gpulease/limits", "/run/gpulease/usage", "/etc/gpulease/lease"
LIBRARY, PRELOAD = "/usr/lib/gpulease/hook.so", "/etc/ld.so.preload"
LEASE_LABEL, TICKET_LABEL = "gpulease.lease", "gpulease.ticket"

LIBC_PATTERN = r"^(glibc-[0-9]{1,3}\.[0-9]{1,4}|musl(-[0-9]{1,3}(\.[0-9]{1,4}){0,2})?|static|unknown)$"
OLDEST_GLIBC = (2, 17)  # whose symbols the hook is linked against
_VISIBLE = "ROCR_VISIBLE_DEVICES"
_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}", re.ASCII)  # docker's own rule for names


class Engine(StrEnum):
    DOCKER = "docker"
    PODMAN = "podman"
    NERDCTL = "nerdctl"  # has no API: its container is known by the lease's cgroup alone


@dataclass(frozen=True, slots=True)
class Container:
    """The container that a lease is anchored to; *id* once one is bound, and then for ever.

    *libc* is the image's, as its caller says. *restarts*: its engine starts it again when it ends.
    """

    engine: Engine
    libc: str = "unknown"
    start_seconds: int | None = None  # in which it must start, whatever becomes of who asked
    restarts: bool = False
    id: str | None = None


class Life(StrEnum):
    """What an engine's word means for the lease."""

    UNKNOWN = "unknown"  # the engine does not answer, which is not the container's end
    WAITING = "waiting"  # made, not started
    ALIVE = "alive"
    ENDED = "ended"


# docker's words and podman's. What neither of them says now counts as alive: nothing is taken from it.
_WAITING = frozenset({"created", "configured", "initialized"})
_ENDED = frozenset({"exited", "stopped", "dead"})


@dataclass(frozen=True, slots=True)
class Seen:
    """A container as its engine lists it. Names and labels are hints: whoever made it chose them."""

    id: str
    names: tuple[str, ...]
    status: str
    labels: Mapping[str, str]
    created: int = 0  # seconds of the engine's own clock

    @property
    def running(self) -> bool:
        return self.status not in _WAITING | _ENDED

    def goes_by(self, name: str) -> bool:
        """Whether *name* is its name, its id, or twelve digits or more that its id begins with."""
        return name in self.names or (len(name) >= 12 and self.id.startswith(name))


def life_of(seen: Seen | None, *, restarts: bool) -> Life:
    """The life of a container that its engine has *seen*; None: it knows of none such any more."""
    if seen is None or seen.status in _ENDED:
        return Life.ENDED
    if seen.status in _WAITING:
        return Life.WAITING
    return Life.ENDED if seen.status == "restarting" and not restarts else Life.ALIVE


def is_id(text: object) -> TypeGuard[str]:
    """Whether *text* is a container's whole id."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def is_name(text: object) -> bool:
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Loading:
    """How an image's programs come to load the hook; neither: they cannot."""

    by_file: bool  # /etc/ld.so.preload, which glibc reads whatever the environment
    by_variable: bool  # LD_PRELOAD
    certain: bool = True  # else nothing is stated of what the hook holds

    @property
    def possible(self) -> bool:
        return self.by_file or self.by_variable


def loading_of(libc: str) -> Loading:
    """How the hook gets into programs of *libc*: of an unknown one by both ways, and nothing is stated."""
    kind, _, version = libc.partition("-")
    if kind == "glibc":
        new = tuple(map(int, version.split("."))) >= OLDEST_GLIBC
        return Loading(by_file=new, by_variable=False)
    if kind == "musl":
        return Loading(by_file=False, by_variable=True)
    unknown = kind != "static"
    return Loading(by_file=unknown, by_variable=unknown, certain=False)


def inside(environment: Mapping[str, str | None]) -> dict[str, str | None]:
    """*environment* for a container, which has only the lease's devices: their numbers begin at 0 again."""
    visible = (environment.get(_VISIBLE) or "").split(",")
    if not all(one.isdecimal() for one in visible):
        return dict(environment)
    order = sorted(map(int, visible))
    return {**environment, _VISIBLE: ",".join(str(order.index(int(one))) for one in visible)}


def cgroup_parent(engine: Engine, driver: str, version: str, path: str, *, slices: bool = True) -> str | None:
    """What ``--cgroup-parent`` must say for a container to lie in the cgroup *path*; None: it cannot.

    Of an engine's ``CgroupDriver`` and ``CgroupVersion``. systemd's driver wants a slice's name, and finds by
    its dashes where that lies: so *slices* must lead there alone, which they do not in a job's scope. Where
    the engine uses version 1 its cgroups are elsewhere.
    """
    if version != "2" or (driver == "systemd" and not slices):
        return None
    if driver == "systemd":
        return path.rpartition("/")[2]
    # podman takes a name of a slice to mean systemd's driver (libpod, runtime_ctr_linux.go).
    return f"{path}/containers" if engine is Engine.PODMAN else path


@dataclass(frozen=True, slots=True)
class Sighting:
    """What is known of the container of a lease, bound or not.

    *populated*: somebody is in the lease's own cgroup. *asker_ended*: why who took the lease can start none
    any more. *none_has_its_ticket*: its engine said so after that; False also where it does not answer.
    """

    life: Life
    populated: bool = False
    asker_ended: str | None = None
    none_has_its_ticket: bool = False


def over(held: Container, sighting: Sighting, *, armed: bool) -> str | None:
    """Why the container of a lease is over, or None while it may be there.

    An engine that is down is no container's end, and who is in the lease's cgroup counts more than its word.
    """
    if sighting.populated:
        return None
    if held.id is not None:
        return f"container {held.id[:12]} ended" if sighting.life is Life.ENDED else None
    if armed:
        return "its cgroup is empty"
    return sighting.asker_ended if sighting.none_has_its_ticket else None
