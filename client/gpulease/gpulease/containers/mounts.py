"""The mounts that ``--volume``, ``--mount`` and ``--tmpfs`` ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpulease.containers.commandline import CommandLine


@dataclass(frozen=True)
class Asked:
    """One mount. *source* is a host path where it begins with a slash, else a volume's name, or empty."""

    source: str
    target: str
    read_only: bool
    said: str  # the option, as the user gave it


def mounts_of(line: CommandLine) -> Iterator[Asked]:
    for option in line.options:
        said = f"{option.name} {option.value}"
        if option.name == "--volume":
            yield _volume(option.value, said)
        elif option.name == "--mount":
            yield from _mount(option.value, said)
        elif option.name == "--tmpfs":
            yield Asked("", option.value.partition(":")[0], False, said)


def _volume(value: str, said: str) -> Asked:
    """``[SOURCE:]TARGET[:OPTIONS]``; a relative source begins with a dot."""
    parts = value.split(":")
    if len(parts) == 1:
        return Asked("", parts[0], False, said)
    source = str(Path.cwd() / parts[0]) if parts[0].startswith(".") else parts[0]
    options = parts[2].split(",") if len(parts) > 2 else []
    return Asked(source, parts[1], "ro" in options, said)


def _mount(value: str, said: str) -> Iterator[Asked]:
    """``KEY=VALUE,…``; a volume may have a host's directory behind it by an option of its driver."""
    fields = [field.partition("=") for field in _csv(value)]
    sources = [text for key, _, text in fields if key in ("source", "src")]
    for key, _, text in fields:
        if key == "volume-opt" and text.startswith("device="):
            sources.append(text[len("device=") :])
    target = next((text for key, _, text in fields if key in ("target", "dst", "destination")), "")
    read_only = any(key in ("readonly", "ro") and text not in ("false", "0") for key, _, text in fields)
    for source in sources or [""]:
        yield Asked(source.rstrip("*?"), target, read_only, said)  # podman's type=glob


def _csv(value: str) -> Sequence[str]:
    if '"' not in value:
        return value.split(",")
    import csv

    return next(csv.reader([value]), [])
