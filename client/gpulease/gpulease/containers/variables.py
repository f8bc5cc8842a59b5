"""The variables of the lease's environment, which a user's own must not contradict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Optional

from gpulease.containers.commandline import CommandLine

_LEASES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "GPU_MAX_HW_QUEUES",
        "HIP_VISIBLE_DEVICES",
        "HSA_CU_MASK",
        "ROCR_VISIBLE_DEVICES",
    }
)
_OTHER_REQUESTS = ("AMD_VISIBLE_DEVICES", "DOCKER_RESOURCE_")  # of AMD's container toolkit
PRELOAD = "LD_PRELOAD"


def contradictions(line: CommandLine, inherited: Mapping[str, str]) -> Iterator[str]:
    """Why variables that the user sets in the container cannot be, before there is a lease."""
    for name in set_by_user(line, inherited):
        if name in _LEASES or name.startswith("GPULEASE_"):
            yield f"{name}: the lease sets it, and no other value is right in its container; leave it out"
        elif name.startswith(_OTHER_REQUESTS):
            yield f"{name} asks another runtime for GPUs: leave it out; the lease brings its own"


def set_by_user(line: CommandLine, inherited: Mapping[str, str]) -> dict[str, str]:
    """What ``--env`` and ``--env-file`` set; a name alone takes the value that it has here, if any."""
    found: dict[str, str] = {}
    for path in line.values("--env-file"):
        for entry in _entries(path):
            _add(found, entry, inherited)
    for entry in line.values("--env", "--env-merge"):
        _add(found, entry, inherited)
    return found


def with_users_preload(
    environment: Mapping[str, Optional[str]], line: CommandLine, inherited: Mapping[str, str]
) -> dict[str, Optional[str]]:
    """*environment*, where a library to be loaded by all programs has the user's own behind it."""
    changed = dict(environment)
    ours, theirs = changed.get(PRELOAD), set_by_user(line, inherited).get(PRELOAD)
    if ours and theirs:
        changed[PRELOAD] = f"{ours}:{theirs}"
    return changed


def _add(found: dict[str, str], entry: str, inherited: Mapping[str, str]) -> None:
    name, equals, value = entry.partition("=")
    if equals:
        found[name] = value
    elif name in inherited:
        found[name] = inherited[name]


def _entries(path: str) -> Iterator[str]:
    """The lines of an environment file; one that we cannot read is the engine's to complain about."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    yield from (line.lstrip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
