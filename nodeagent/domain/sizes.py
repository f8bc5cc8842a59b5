"""Sizes of memory as people write and read them: K and KiB are powers of 1024, kB of 1000, and so on."""

from __future__ import annotations

import re

UNITS = {
    "": 1,
    **{f"{unit}{end}": 1024**power for power, unit in enumerate("KMGT", 1) for end in ("", "iB")},
    **{f"{unit}B": 1000**power for power, unit in enumerate("kMGT", 1)},
}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?) ?([A-Za-z]{0,3})", re.ASCII)


def size_of(text: str) -> int:
    """The bytes of ``24GiB``, ``0.5T`` or ``1073741824``. Raises ValueError."""
    found = _SIZE.fullmatch(text)
    if found is None or found[2] not in UNITS:
        raise ValueError(f"{text!r} is no size: write 24GiB, 24G or 24GB, or a number of bytes")
    return int(float(found[1]) * UNITS[found[2]]) if "." in found[1] else int(found[1]) * UNITS[found[2]]


def size_text(size_bytes: int) -> str:
    """Bytes for a person, in the unit that leaves a digit before the point."""
    for unit, bits in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 1 << bits:
            return f"{size_bytes / (1 << bits):.1f} {unit}"
    return f"{size_bytes} B"
