"""What a job asks for within its shards: one word of its own, strictly read, and the slices of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nodeagent.domain import shards
from nodeagent.domain.device import VRAM_GRAIN, Device
from nodeagent.domain.request import SliceRequest
from nodeagent.domain.sizes import UNITS

PREFIX = "gpulease:"
LOOKED_AT = 200  # characters of a user's text
_WORD = re.compile(
    rf"{PREFIX}(?:(?P<gpus>gpus)|shards=(?P<shards>[1-9][0-9]{{0,3}})"
    r"(?:,vram=(?P<vram>[1-9][0-9]{0,14})(?P<unit>[KMGT](?:iB)?|[kMGT]B)?)?"
    r"(?:,cu=(?P<cu>[0-9]{1,3}(?:\.[0-9]{1,2})?)%)?)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """*shards* of the node's, None for whole GPUs; *vram_bytes* and *cu_percent* are for each GPU."""

    shards: int | None
    vram_bytes: int | None = None
    cu_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """One GPU of a job: the device, and how many shards it is worth; 0: it is granted whole."""

    device: Device
    shards: int


def asked_in(text: str) -> Asked | None:
    """The one ``gpulease:`` word of *text*, between blanks or semicolons; None where there is none such.

    Two of them, or one that is not exactly as job_submit.lua writes it, are none.
    """
    words = re.split(r"[\s;]+", text[:LOOKED_AT])
    if len(text) > LOOKED_AT:
        words.pop()  # it may be cut
    found = [word for word in words if word.startswith(PREFIX)]
    match = _WORD.fullmatch(found[0]) if len(found) == 1 else None
    if match is None:
        return None
    if match["gpus"]:
        return Asked(None)
    vram = int(match["vram"]) * UNITS[match["unit"] or ""] if match["vram"] else None
    return Asked(int(match["shards"]), vram, float(match["cu"]) if match["cu"] else None)


def slices_of(places: Sequence[Place], asked: Asked | None) -> tuple[SliceRequest, ...] | str:
    """A slice on each of *places*, or why the job cannot have what it *asked* for.

    Who asks for nothing has one shard of each, or the whole GPU where there are no shards. Slurm does not say
    how it dealt a job's shards over several GPUs: they count evenly.
    """
    slices = []
    for place in places:
        found = _slice(place, asked, len(places))
        if isinstance(found, str):
            return found
        slices.append(found)
    return tuple(slices)


def _slice(place: Place, asked: Asked | None, gpus: int) -> SliceRequest | str:
    if place.shards == 0 or (asked is not None and asked.shards is None):
        return SliceRequest(device=(place.device.key,))
    mine = 1 if asked is None or asked.shards is None else max(1, asked.shards // gpus)
    if mine > place.shards:
        return f"asks for {mine} shards of a GPU that has {place.shards}"
    share = replace(shards.asked(mine, place.shards), device=(place.device.key,))
    if asked is not None and asked.cu_percent is not None:
        if not 0 < asked.cu_percent <= (share.cu_percent or 0):
            return f"asks for {asked.cu_percent:g} % of the CUs, and has {mine} of {place.shards} shards"
        share = replace(share, cu_percent=asked.cu_percent)
    if asked is None or asked.vram_bytes is None:
        return share
    most = place.device.grantable_bytes * mine // place.shards // VRAM_GRAIN * VRAM_GRAIN
    if asked.vram_bytes > most:
        return f"asks for {asked.vram_bytes} bytes of VRAM: {mine} of {place.shards} shards are {most}"
    return replace(share, vram_percent=None, vram_bytes=asked.vram_bytes)
