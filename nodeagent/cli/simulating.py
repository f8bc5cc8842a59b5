"""Machine files on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nodeagent.adapters import machine


def listing() -> Iterator[tuple[str, str]]:
    """Name and description of every shipped machine file."""
    for name in machine.names():
        yield name, machine.find(name).description


def write_capture(root: Path, output: Path) -> str:
    """Capture *root* into *output*; what to tell the user."""
    captured = machine.capture(root)
    machine.dump(captured, output)
    count = len(captured.captured.files)
    try_it = f"nodeagent serve --simulate {output} --socket /tmp/api.sock --state-dir /tmp/state"
    return f"{output}: {count} files of {root}; try it: {try_it}"
