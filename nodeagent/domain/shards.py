"""What a Slurm shard is worth on a GPU, and into how many shards a GPU is best divided."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from nodeagent.domain.cuset import CuSet
from nodeagent.domain.device import Device
from nodeagent.domain.geometry import Geometry
from nodeagent.domain.request import Policy, SliceRequest
from nodeagent.domain.shapes import choose
from nodeagent.domain.sizing import Demand, demand

LEAST_QUEUES = 2  # of a shard: with one, a program's copies wait for its kernels


def asked(count: int, shards: int) -> SliceRequest:
    """The slice that *count* of a GPU's *shards* come to: the same part of its CUs and of its VRAM."""
    part = _percent(count, shards)
    return SliceRequest(cu_percent=part, vram_percent=part)


def _percent(count: int, shards: int) -> float:
    """The percentage, never below the true one: a hair less would round a whole row of CUs away."""
    nearest = 100 * count / shards
    short = Fraction(str(nearest)) < Fraction(100 * count, shards)
    return math.nextafter(nearest, math.inf) if short else nearest


@dataclass(frozen=True, slots=True)
class Worth:
    """One of a GPU's *shards*: its CUs, how many the poorest works like, VRAM, queue slots; what is left.

    Where a shard is no *whole_rows*, ends of small jobs can leave free shards that no job of several gets.
    """

    shards: int
    cus: int
    effective_cus: int  # of the poorest, wherever the silicon lost CUs
    vram_bytes: int
    queue_slots: int
    spare_cus: int  # in no shard: requests by CU count can have them
    whole_rows: bool
    fits: int  # how many find CUs and queue slots at once, and may share it


def worth(device: Device, geometry: Geometry, shards: int) -> Worth:
    """What one of *shards* is worth on an idle *device*."""
    needs = _needs(device, geometry, shards)
    packed = _packed(geometry, needs, shards)
    return Worth(
        shards=shards,
        cus=needs.granted_cus,
        effective_cus=min(map(geometry.effective, packed), default=0),
        vram_bytes=needs.vram_bytes,
        queue_slots=needs.queue_slots,
        spare_cus=geometry.cus - len(packed) * needs.granted_cus,
        whole_rows=needs.granted_cus % geometry.row == 0 or shards == 1,
        fits=min(len(packed), device.queue_slots // needs.queue_slots, device.shares or shards),
    )


def _needs(device: Device, geometry: Geometry, shards: int) -> Demand:
    return demand(asked(1, shards), device, geometry, Policy.BINPACK, shared_cu_percent=0)


def _packed(geometry: Geometry, needs: Demand, shards: int) -> list[CuSet]:
    """The CUs of each shard; of as many as fit."""
    free, packed = geometry.everything, list[CuSet]()
    while len(packed) < shards and (cus := choose(geometry, free, needs.cus, needs.shape)) is not None:
        packed.append(cus)
        free -= cus
    return packed


def best(device: Device, geometry: Geometry) -> Worth:
    """The division whose shards are sure to be worth the most CUs in all; of equals the finest.

    One shard where none is good. Good is one whose shards have whole rows of CUs, so that no order of jobs
    can leave halves of rows that make no shard, and two hardware queues.
    """
    divisions = (worth(device, geometry, shards) for shards in range(2, device.queue_slots + 1))
    good = [one for one in divisions if _is_good(one)]
    whole = worth(device, geometry, 1)
    return max(good, key=lambda one: (one.shards * one.effective_cus, one.shards), default=whole)


def _is_good(one: Worth) -> bool:
    return one.whole_rows and one.fits == one.shards and one.queue_slots >= LEAST_QUEUES
