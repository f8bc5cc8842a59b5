"""The closure: what cgroups outside leases may use of VRAM regions, so that a lease's limit means something.

A limit binds who is in the lease's cgroup. Whoever starts elsewhere, or has PID 1 move it elsewhere, is bound
only if elsewhere there is nothing to be had.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

Bytes = Mapping[str, int]  # by region
# Instances' subtrees at the top, where root alone makes cgroups: the leases in them have limits of their own.
_INSTANCE = re.compile(r"gpulease(_[0-9A-Za-z]+)?\.slice")
# Slurm makes its jobs' cgroups in here and counts on what the parents leave (one scope a slurmd).
_SLURM = "/system.slice/*slurmstepd.scope"


@dataclass(frozen=True, slots=True)
class Place:
    """Where live leases are. *limited*: the cgroup is a lease's own, with limits of its own on *leased*.

    Elsewhere (a job that its leases are nested in, what was adopted) all that runs there shares *leased*.
    """

    leased: Bytes
    limited: bool


@dataclass(frozen=True, slots=True)
class Closure:
    """*caps*: ``dmem.max`` to hold by cgroup; *inner*: those whose children each have their own.

    A child that appears in one of *inner* is not held yet; where it can be, the cgroup itself bounds it.
    """

    caps: Mapping[str, Bytes] = field(default_factory=dict)
    inner: tuple[str, ...] = ()


class _Walk:
    def __init__(
        self,
        children: Callable[[str], Sequence[str]],
        whole: Callable[[str], bool],
        places: Mapping[str, Place],
        regions: Sequence[str],
        exempt: Sequence[str],
    ) -> None:
        self._children, self._whole, self._places, self._regions = children, whole, places, regions
        self._below = _below(places)
        self._exempt = {path for pattern in exempt for path in self._expand(pattern)}
        self._slurm = set(self._expand(_SLURM))
        self.caps: dict[str, Bytes] = {}
        self.inner: list[str] = []

    def walk(self, path: str) -> None:
        for name in self._children(path):
            child = join(path, name)
            if (path == "/" and _INSTANCE.fullmatch(name)) or child in self._exempt:
                continue
            place = self._places.get(child)
            if place is not None and place.limited:
                continue
            if place is None and self._divided(child) and not self._whole(child):
                self.inner.append(child)
                if not self._leads_further(child):
                    self.caps[child] = self._leased(child)
                self.walk(child)
            else:
                self.caps[child] = self._leased(child)

    def _divided(self, path: str) -> bool:
        """Whether something in *path* must get more than nothing."""
        kept = self._exempt | self._slurm | self._places.keys()
        return path in self._slurm or any(one.startswith(f"{path}/") for one in kept)

    def _leads_further(self, path: str) -> bool:
        """Whether *path* leads to what has no limit to add up: Slurm's parents, or exempt ones."""
        return any(f"{one}/".startswith(f"{path}/") for one in self._exempt | self._slurm)

    def leases(self) -> None:
        """Hold each lease at nothing of what it was not granted, but for what leases nested in it hold."""
        for path, place in sorted(self._places.items()):
            nested = self._nested(path)
            others = {region: nested[region] for region in self._regions if region not in place.leased}
            if place.limited and others:
                self.caps[path] = others
                parent = path.rpartition("/")[0] or "/"
                self.inner += [] if parent in self.inner else [parent]

    def _leased(self, path: str) -> Bytes:
        here = self._places.get(path)
        nested = self._nested(path)
        return {region: nested[region] + (here.leased.get(region, 0) if here else 0) for region in nested}

    def _nested(self, path: str) -> Bytes:
        below = self._below.get(path, {})
        return {region: below.get(region, 0) for region in self._regions}

    def _expand(self, pattern: str) -> Iterator[str]:
        """The existing cgroups that *pattern* names, each ``*`` being within one name."""
        found = ["/"]
        for part in pattern.strip("/").split("/"):
            found = [join(at, name) for at in found for name in self._children(at) if fnmatchcase(name, part)]
        return iter(found)


def _below(places: Mapping[str, Place]) -> dict[str, dict[str, int]]:
    """What leases hold below each cgroup that they are below of."""
    sums: dict[str, dict[str, int]] = {}
    for path, place in places.items():
        while path := path.rpartition("/")[0]:
            at = sums.setdefault(path, {})
            for region, held in place.leased.items():
                at[region] = at.get(region, 0) + held
    return sums


def close(
    children: Callable[[str], Sequence[str]],
    whole: Callable[[str], bool],
    places: Mapping[str, Place],
    regions: Sequence[str],
    exempt: Sequence[str] = (),
) -> Closure:
    """What to hold every cgroup at, for *regions*: nothing, or what leases in it hold.

    A lease's own cgroup has its limits from its grant; here it is held to nothing of all other regions.

    *children* gives the names below a cgroup. *whole*: whether a cgroup can only be held as one, for
    processes run in it beside its children, or another user may write its children's limits. *places* are
    leases by path, *exempt* patterns of cgroups that are left open.
    """
    walk = _Walk(children, whole, places, regions, exempt)
    walk.walk("/")
    walk.leases()
    return Closure(walk.caps, tuple(walk.inner))


def join(path: str, name: str) -> str:
    """The cgroup *name* below *path*."""
    return f"/{name}" if path == "/" else f"{path}/{name}"
