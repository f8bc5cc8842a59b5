"""HSA_CU_MASK: written, and read the way ROCr reads it (``Flag::parse_masks``, 2021 to 2026).

ROCr is silent about errors: the first bad set and all after it are dropped, and with them the restriction.
So every mask is read back here before it is handed out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodeagent.domain.cuset import CuSet

_SPACE = re.compile(r"[ \t\n\v\f\r]+")
_NUMBER = re.compile(r"\+?[0-9]*", re.ASCII)
_ULONG_MAX = (1 << 64) - 1
_UINT32_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class MaskResult:
    """What ROCr makes of a mask. A GPU that *sets* does not list is unrestricted."""

    sets: Mapping[int, CuSet]  # GPU index after ROCR_VISIBLE_DEVICES → CUs that its queues may use
    error: str | None = None  # why reading stopped; sets before it stay in force
    dropped: tuple[int, ...] = ()  # ids beyond the GPUs or CUs, which ROCr leaves out without a word


class _SyntaxStop(Exception):
    """ROCr would stop reading here."""


def format_mask(sets: Sequence[CuSet]) -> str:
    """The mask that gives GPU *i* of those visible the CUs of ``sets[i]``; an empty set stays unlisted."""
    return ";".join(f"{gpu}:{cus}" for gpu, cus in enumerate(sets) if cus)


def parse_mask(text: str, *, gpus: int, cus: int) -> MaskResult:
    """Read *text* as ROCr does in a process that sees *gpus* GPUs, the largest of *cus* CUs.

    Its ids run up to and including the count, one too many: kept here, since the aim is what ROCr does.
    """
    sets: dict[int, CuSet] = {}
    dropped: list[int] = []
    for part in _split(_SPACE.sub("", text).upper(), ";"):
        try:
            listed, chosen = _read_set(part, gpus, cus, dropped)
            if repeated := [gpu for gpu in listed if gpu in sets]:
                raise _SyntaxStop(f"{part}: GPU {repeated[0]} comes twice")
        except _SyntaxStop as stop:
            return MaskResult(sets, str(stop), tuple(dropped))
        sets.update(dict.fromkeys(listed, chosen))
    return MaskResult(sets, None, tuple(dropped))


def _read_set(part: str, gpus: int, cus: int, dropped: list[int]) -> tuple[CuSet, CuSet]:
    sides = _split(part, ":")
    if len(sides) != 2:
        raise _SyntaxStop(f"{part!r}: not one GPU list, ':' and one CU list")
    listed, mask = sides
    chosen = _read_hex(mask, cus) if mask[1:2] == "X" else _read_ids(mask, cus, dropped)
    return _read_ids(listed, gpus, dropped), chosen


def _read_hex(mask: str, cus: int) -> CuSet:
    if not re.fullmatch(r"0X[0-9A-F]*", mask, re.ASCII):
        raise _SyntaxStop(f"{mask}: no hexadecimal number")
    kept = (cus // 32 + 1) * 32  # ROCr trims to whole 32-bit words; the kernel ignores the bits above the CUs
    bits = int(mask[2:] or "0", 16) & ((1 << kept) - 1)
    if not bits:
        raise _SyntaxStop(f"{mask}: no usable CU")
    return CuSet(bits)


def _read_ids(text: str, most: int, dropped: list[int]) -> CuSet:
    bits = 0
    for item in _split(text, ","):
        bounds = _split(item, "-")
        if not 1 <= len(bounds) <= 2:
            raise _SyntaxStop(f"{item!r}: no id and no range")
        first, last = _number(bounds[0]), _number(bounds[-1])
        if last < first:
            raise _SyntaxStop(f"{item}: the range runs backwards")
        if last > most:
            dropped.append(last)
        if first > most:
            continue
        span = CuSet.span(first, min(last, most) - first + 1).bits
        if bits & span:
            raise _SyntaxStop(f"{item}: an id comes twice")
        bits |= span
    if not bits:
        raise _SyntaxStop(f"{text!r}: no usable id")
    return CuSet(bits)


def _number(text: str) -> int:
    """C's strtoul cut to 32 bits: a sign is fine, nothing at all is 0, too large saturates."""
    if not _NUMBER.fullmatch(text):
        raise _SyntaxStop(f"{text}: no decimal number")
    digits = text.lstrip("+0")
    return (_ULONG_MAX if len(digits) > 20 else min(int(digits or "0"), _ULONG_MAX)) & _UINT32_MAX


def _split(text: str, separator: str) -> list[str]:
    """Split as ROCr does: an empty text has no parts, and a separator at the end adds none."""
    parts = text.split(separator)
    return parts[:-1] if parts[-1] == "" else parts
