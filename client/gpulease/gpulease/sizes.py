"""How people write sizes, shares and durations, and how we write them back."""

from __future__ import annotations

import re
from typing import Optional

SIZE_FORMS = "a size such as 48G, 512MiB or 80GB (K/M/G/T and KiB… are powers of 1024, kB/MB… of 1000)"
PERCENT_FORMS = "a share such as 25%, above 0 and at most 100"
DURATION_FORMS = "a duration such as 90s, 15m, 2h, 1d or 1h30m"

_SIZE = re.compile(r"(\d{1,15})(?:\.(\d{1,9}))?\s*([A-Za-z]*)", re.ASCII)
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%", re.ASCII)
_DURATION = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s)?", re.ASCII)
_LETTERS = "kmgt"
_LEAST_BARE_BYTES = 1 << 20


def parse_size(text: str) -> int:
    """Bytes; a fraction of a byte is dropped.

    Raises:
        ValueError: not a size, or a bare number so small that its unit was surely forgotten.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = _unit(match.group(3).lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not {SIZE_FORMS}")
    fraction = match.group(2) or ""
    size = int(match.group(1) + fraction) * unit // int("1" + "0" * len(fraction))
    if size <= 0:
        raise ValueError(f"{text!r} is nothing: expected {SIZE_FORMS}")
    if not match.group(3) and size < _LEAST_BARE_BYTES:
        raise ValueError(f"{text!r} has no unit: expected {SIZE_FORMS}")
    return size


def _unit(name: str) -> Optional[int]:
    if name in ("", "b"):
        return 1
    power = _LETTERS.find(name[0]) + 1
    if not power:
        return None
    base = {"": 1024, "ib": 1024, "b": 1000}.get(name[1:])
    return None if base is None else 1 << (10 * power) if base == 1024 else 1000**power


def parse_percent(text: str) -> float:
    """Percent of the whole, 0 < p <= 100.

    Raises:
        ValueError: not a share.
    """
    match = _PERCENT.fullmatch(text.strip())
    value = float(match.group(1)) if match else 0.0
    if not 0 < value <= 100:
        raise ValueError(f"{text!r} is not {PERCENT_FORMS}")
    return value


def parse_duration(text: str) -> int:
    """Whole seconds; a bare number is seconds.

    Raises:
        ValueError: not a duration, or none at all.
    """
    stripped = text.strip()
    match = _DURATION.fullmatch(stripped + "s" if stripped.isdigit() else stripped)
    if match is None or not stripped:
        raise ValueError(f"{text!r} is not {DURATION_FORMS}")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total <= 0:
        raise ValueError(f"{text!r} is no time at all: expected {DURATION_FORMS}")
    return total


def human_size(size: Optional[int]) -> str:
    """Bytes in the largest unit of 1024 that leaves at least 1, with three digits or so: ``47.5 GiB``."""
    if size is None:
        return "?"
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 100 or value == int(value) else f"{value:.1f} {unit}"
