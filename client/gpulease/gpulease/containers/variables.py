"""The variables of the lease's environment, which a user's own must not contradict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Optional

from gpulease.containers.commandline import CommandLine
from gpulease.errors import BreaksFence

Settings = Mapping[str, Optional[str]]
PRELOAD = "LD_PRELOAD"
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


def contradictions(line: CommandLine, inherited: Mapping[str, str], settings: Settings) -> Iterator[str]:
    """Why variables that the user sets in the container cannot be; *settings* are the lease's, once known."""
    for name, value in set_by_user(line, inherited).items():
        contradicts = name in settings and name != PRELOAD and value != settings[name]
        if name in _LEASES or name.startswith("GPULEASE_") or contradicts:
            yield f"{name}: the lease sets it, and no other value is right in its container; leave it out"
        elif name.startswith(_OTHER_REQUESTS):
            yield f"{name} asks another runtime for GPUs: leave it out; the lease brings its own"


def settled(
    settings: Settings, line: CommandLine, inherited: Mapping[str, str], of_image: Mapping[str, str]
) -> dict[str, Optional[str]]:
    """The lease's *settings* in an image with variables of its own.

    A library to be loaded into all programs keeps the user's or the image's behind it; what asks another
    runtime for GPUs is taken out.

    Raises:
        BreaksFence: nerdctl would have to take a variable out of the image's, which it cannot.
    """
    changed = dict(settings)
    changed.update({name: None for name in of_image if name.startswith(_OTHER_REQUESTS)})
    ours = changed.get(PRELOAD)
    theirs = set_by_user(line, inherited).get(PRELOAD) or of_image.get(PRELOAD)
    if ours and theirs:
        changed[PRELOAD] = f"{ours}:{theirs}"
    if line.engine == "nerdctl":
        return _without_unset(changed, of_image)
    return changed


def _without_unset(settings: Settings, of_image: Mapping[str, str]) -> dict[str, Optional[str]]:
    for name, value in settings.items():
        if value is None and name in of_image:
            raise BreaksFence(f"the image sets {name}, and nerdctl cannot take it out: use docker or podman")
    return {name: value for name, value in settings.items() if value is not None}


def set_by_user(line: CommandLine, inherited: Mapping[str, str]) -> dict[str, str]:
    """What ``--env`` and ``--env-file`` set; a name alone takes the value that it has here, if any."""
    found: dict[str, str] = {}
    for path in line.values("--env-file"):
        for entry in _entries(path):
            _add(found, entry, inherited)
    for entry in line.values("--env", "--env-merge"):
        _add(found, entry, inherited)
    return found


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
