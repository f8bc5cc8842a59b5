"""Who has DRM nodes open, and how much VRAM by them: /proc/<pid>/fdinfo, the kernel's drm-usage-stats.

Keys as in Documentation/gpu/drm-usage-stats.rst and amdgpu_fdinfo.c. The text is the kernel's own; what a
user can choose is the name of the file that is open, which is only used to find where to look.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nodeagent.adapters.processes import every_pid
from nodeagent.domain.watch import DrmClient

DRM_MAJOR = 226
_NODE = re.compile(r"(?:renderD|card)(\d{1,4})(?: \(deleted\))?")
_SIZE = re.compile(r"(\d{1,20})(?: (KiB|MiB))?")
_TIME = re.compile(r"(\d{1,20}) ns")
_UNITS = {None: 1, "KiB": 1 << 10, "MiB": 1 << 20}


@dataclass(frozen=True, slots=True)
class _Open:
    """One descriptor of a DRM node."""

    pid: int
    minor: int | None
    values: Mapping[str, str]


def drm_clients(proc: Path, pids: Collection[int] | None = None) -> tuple[DrmClient, ...]:
    """The amdgpu clients of all processes below *proc*, or of *pids*; a client counts once, by its id.

    Only descriptors of files that are called like a DRM node are looked at; opened under another name, its
    memory shows in KFD's figures alone.
    """
    found: defaultdict[tuple[str | int | None, int], list[_Open]] = defaultdict(list)
    for pid in _processes(proc) if pids is None else pids:
        for one in _opens(proc / str(pid), pid):
            client = one.values.get("drm-client-id", "")
            if client.isdecimal():
                found[one.values.get("drm-pdev") or one.minor, int(client)].append(one)
    return tuple(_client(client, opens) for (_, client), opens in found.items())


def _processes(proc: Path) -> list[int]:
    try:
        return every_pid(proc)
    except OSError:
        return []  # a simulated node may have none


def _opens(process: Path, pid: int) -> Iterator[_Open]:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return  # it ended
    for descriptor in descriptors:
        try:
            named = _NODE.fullmatch(descriptor.readlink().name)
            if named is None:
                continue
            # First the kernel's text: to stat a file of this name on a user's file system may wait for ever.
            info = process / "fdinfo" / descriptor.name
            values = _values(info.read_text(encoding="utf-8", errors="replace"))
            if values.get("drm-driver") == "amdgpu":
                yield _Open(pid, _minor(descriptor, int(named[1])), values)
        except OSError:
            continue  # closed meanwhile


def _minor(descriptor: Path, named: int) -> int | None:
    """By the device number, since a container may call its nodes otherwise."""
    try:
        device = descriptor.stat().st_rdev
    except FileNotFoundError:
        return named  # a copied tree has the link only
    return os.minor(device) if os.major(device) == DRM_MAJOR else None


def _values(text: str) -> dict[str, str]:
    lines = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def _client(client: int, opens: list[_Open]) -> DrmClient:
    last = opens[-1]
    resident = _size(last.values, "drm-resident-vram")
    engines = (_TIME.fullmatch(value) for key, value in last.values.items() if key.startswith("drm-engine-"))
    return DrmClient(
        pids=frozenset(one.pid for one in opens),
        pci=last.values.get("drm-pdev"),
        minor=last.minor,
        client=client,
        resident_bytes=resident if resident is not None else _size(last.values, "drm-memory-vram") or 0,
        shared_bytes=_size(last.values, "drm-shared-vram"),
        engine_ns=sum(int(time[1]) for time in engines if time),
    )


def _size(values: Mapping[str, str], key: str) -> int | None:
    match = _SIZE.fullmatch(values.get(key, ""))
    return int(match[1]) * _UNITS[match[2]] if match else None
