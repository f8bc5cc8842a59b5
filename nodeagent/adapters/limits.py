"""The cgroup limits a process lives under, so that a lease's cgroup never frees it from one (threat 9)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, Self

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree, OpenCgroup
from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain.errors import OutsideFault

_PERIOD_US = 100_000
_LEAST_QUOTA_US = 1_000  # the kernel's minimum


@dataclass(frozen=True, slots=True)
class Limits:
    """What a cgroup and all above it leave; None: no limit. Named as the files, dots as underscores."""

    memory_max: int | None = None  # bytes
    memory_high: int | None = None  # bytes
    memory_swap_max: int | None = None  # bytes
    pids_max: int | None = None
    cpu_max: Fraction | None = None  # CPUs: quota by period
    cpuset_cpus: frozenset[int] | None = None

    def to_json(self) -> dict[str, str]:
        """The set limits as text by name; `from_json` reads it back."""
        texts = {name: _spell(getattr(self, name)) for name in _NAMES}
        return {name: text for name, text in texts.items() if text is not None}

    @classmethod
    def from_json(cls, texts: Mapping[str, str]) -> Self:
        """Read what `to_json` wrote. Raises ValueError for anything else."""
        if unknown := texts.keys() - set(_NAMES):
            raise ValueError(f"no limit is named {', '.join(sorted(unknown))}")
        read: dict[str, Any] = {name: _READERS.get(name, int)(text) for name, text in texts.items()}
        return cls(**read)


_NAMES = tuple(field.name for field in fields(Limits))


def effective_limits(tree: CgroupTree, path: str) -> Limits:
    """The tightest of each limit over *path* and its ancestors; what is missing limits nothing."""
    limits = Limits()
    for at in _upwards(path):
        ref = tree.resolve(at)
        if ref is None:
            continue
        with contextlib.suppress(FileNotFoundError), tree.open(ref) as cgroup:
            limits = _tightest(limits, _own_limits(cgroup))
    return limits


def loosens(caller: Limits, lease: Limits) -> tuple[str, ...]:
    """The files' names of those limits of *caller* from which a move into *lease* would free it."""
    return tuple(_file(name) for name in _NAMES if _looser(getattr(caller, name), getattr(lease, name)))


def apply(tree: CgroupTree, ref: CgroupRef, limits: Limits) -> tuple[str, ...]:
    """Set on the cgroup *ref* those of *limits* that it does not have already from above.

    Returns the files' names of those that still are looser, for want of the controller: an attach from under
    them is then refused. Raises OutsideFault where the kernel refuses a value, FileNotFoundError when *ref*
    is gone.
    """
    with tree.open(ref) as cgroup:
        if limits == Limits():
            return ()  # the caller had none: nothing to compare with all that is above
        for name in loosens(limits, effective_limits(tree, ref.path)):
            if cgroup.read(name) is None:
                with contextlib.suppress(OutsideFault):
                    tree.enable(name.partition(".")[0], ref.path)
            value = getattr(limits, name.replace(".", "_"))
            _write(cgroup, name, _kernel_spelling(value))
    return loosens(limits, effective_limits(tree, ref.path))


def _write(cgroup: OpenCgroup, name: str, text: str) -> None:
    try:
        cgroup.write(name, text)
    except FileNotFoundError:
        return
    except OSError as fault:
        raise outside_fault(f"{cgroup.path}/{name}", fault) from fault


def _own_limits(cgroup: OpenCgroup) -> Limits:
    return Limits(
        memory_max=_number(cgroup.read("memory.max")),
        memory_high=_number(cgroup.read("memory.high")),
        memory_swap_max=_number(cgroup.read("memory.swap.max")),
        pids_max=_number(cgroup.read("pids.max")),
        cpu_max=_cpus(cgroup.read("cpu.max")),
        cpuset_cpus=_cpu_list(cgroup.read("cpuset.cpus.effective") or ""),
    )


def _tightest(lower: Limits, upper: Limits) -> Limits:
    """Of both; a cpuset is what the lower says, for the kernel has intersected it with the upper already."""
    merged = {}
    for name in _NAMES:
        values = [v for v in (getattr(lower, name), getattr(upper, name)) if v is not None]
        if values:
            merged[name] = values[0] if name == "cpuset_cpus" else min(values)
    return replace(Limits(), **merged)


def _looser(caller: object, lease: object) -> bool:
    if caller is None:
        return False
    if isinstance(caller, frozenset):
        return not isinstance(lease, frozenset) or not lease <= caller
    return lease is None or lease > caller  # type: ignore[operator]


def _upwards(path: str) -> Iterator[str]:
    while path != "/":
        yield path
        path = path.rpartition("/")[0] or "/"
    yield "/"


def _file(name: str) -> str:
    return name.replace("_", ".")


def _number(text: str | None) -> int | None:
    """One number, or ``max``."""
    value = (text or "max").strip()
    return int(value) if value.isdecimal() else None


def _cpus(text: str | None) -> Fraction | None:
    """``quota period`` in microseconds, or ``max period``."""
    values = (text or "").split()
    if len(values) != 2 or not all(value.isdecimal() for value in values) or int(values[1]) == 0:
        return None
    return Fraction(int(values[0]), int(values[1]))


def _cpu_list(text: str) -> frozenset[int] | None:
    """``0-3,8``; an empty list is None: no limit is known."""
    cpus: set[int] = set()
    for span in filter(None, text.strip().split(",")):
        first, _, last = span.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus) or None


def _spell(value: int | Fraction | frozenset[int] | None) -> str | None:
    if isinstance(value, frozenset):
        return ",".join(str(cpu) for cpu in sorted(value))
    return None if value is None else str(value)


def _kernel_spelling(value: int | Fraction | frozenset[int]) -> str:
    if isinstance(value, Fraction):
        return f"{max(_LEAST_QUOTA_US, int(value * _PERIOD_US))} {_PERIOD_US}"
    return _spell(value) or ""


_READERS: Mapping[str, Callable[[str], object]] = {"cpu_max": Fraction, "cpuset_cpus": _cpu_list}
