"""What a request comes to on one device: CUs, bytes and queue slots."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from nodeagent.domain.device import VRAM_GRAIN, Device
from nodeagent.domain.errors import InvalidField
from nodeagent.domain.geometry import Geometry
from nodeagent.domain.request import Policy, Request, Shape, SliceRequest
from nodeagent.domain.shapes import granted_size, share_of, shared_size

PAGE = 4096  # bytes; dmem.max is kept in whole pages


@dataclass(frozen=True, slots=True)
class Demand:
    """One slice's needs on one device; which CUs it gets is not chosen yet."""

    cus: int  # CUs asked for; for a shared slice the size of the shared set
    granted_cus: int  # what the shape makes of them
    shared: bool
    whole: bool  # all CUs: no mask
    exclusive: bool
    vram_bytes: int
    queue_slots: int
    shape: Shape


def check_sizes(request: Request) -> None:
    """Refuse what no device could make sense of.

    Raises:
        InvalidField: a slice on the shared CUs without a size of VRAM: nothing would bound it; or a part
            of a partition, which is taken whole.
    """
    for number, asked in enumerate(request.slices):
        if asked.partition and not asked.whole:
            raise InvalidField(f"slices[{number}].partition", "is whole: leave cus, vram_bytes and so on out")
        if asked.cu_shared and asked.vram_bytes is None and asked.vram_percent is None:
            raise InvalidField(
                f"slices[{number}].vram_bytes", "a slice on the shared CUs needs vram_bytes or vram_percent"
            )


def demand(
    asked: SliceRequest, device: Device, geometry: Geometry, policy: Policy, shared_cu_percent: float
) -> Demand:
    """What *asked* comes to on *device*.

    VRAM alone books the same share of CUs, CUs alone the same share of VRAM, neither the whole device for
    oneself. Percentages are of all CUs and of the grantable VRAM, the latter rounded down to 2 MiB and at
    least that; an absolute size of VRAM is kept, rounded up to whole pages.

    Args:
        shared_cu_percent: of a device's CUs, what its shared set takes.
    """
    size = _Size(device.cus, device.grantable_bytes, device.even_bytes, device.queue_slots)
    return _demand(asked, size, geometry, policy, shared_cu_percent)


@dataclass(frozen=True, slots=True)
class _Size:
    """What of a device a demand depends on: those of one node are of few sizes."""

    cus: int
    grantable_bytes: int
    even_bytes: int
    queue_slots: int


@lru_cache(maxsize=64)  # few, as a request may be long
def _demand(
    asked: SliceRequest, device: _Size, geometry: Geometry, policy: Policy, shared_cu_percent: float
) -> Demand:
    cus = _cus(asked, device, geometry, shared_cu_percent)
    vram_bytes = _vram_bytes(asked, device)
    whole = not asked.cu_shared and cus == geometry.cus
    granted = cus if asked.cu_shared else granted_size(geometry, cus, asked.shape)
    share = Fraction(granted, geometry.cus)
    if asked.cu_shared and device.grantable_bytes:
        share = min(share, Fraction(vram_bytes, device.grantable_bytes))
    default_slots = max(1, int(device.queue_slots * min(share, Fraction(1))))
    return Demand(
        cus=cus,
        granted_cus=granted,
        shared=asked.cu_shared,
        whole=whole,
        exclusive=asked.whole or policy is Policy.EXCLUSIVE,
        vram_bytes=vram_bytes,
        queue_slots=asked.queue_slots if asked.queue_slots is not None else default_slots,
        shape=asked.shape,
    )


def _cus(asked: SliceRequest, device: _Size, geometry: Geometry, shared_cu_percent: float) -> int:
    if asked.cu_shared:
        return shared_size(geometry, shared_cu_percent)
    if asked.cus is not None:
        return asked.cus
    if asked.whole:
        return geometry.cus
    if asked.cu_percent is not None:
        share = share_of(asked.cu_percent)
    elif asked.vram_percent is not None:
        share = share_of(asked.vram_percent)
    else:
        share = _part(asked.vram_bytes, device.grantable_bytes)
    return max(1, int(geometry.cus * share))


def _vram_bytes(asked: SliceRequest, device: _Size) -> int:
    if asked.vram_bytes is not None:
        return max(1, -(-asked.vram_bytes // PAGE)) * PAGE
    if asked.whole:
        even = device.even_bytes if asked.partition else 0
        return min(device.grantable_bytes, even or device.grantable_bytes)
    if asked.vram_percent is not None:
        share = share_of(asked.vram_percent)
    elif asked.cu_percent is not None:
        share = share_of(asked.cu_percent)
    else:
        share = _part(asked.cus, device.cus)
    return max(1, int(device.grantable_bytes * share) // VRAM_GRAIN) * VRAM_GRAIN


def _part(asked: int | None, whole: int) -> Fraction:
    """*asked* as a share of *whole*, at most all; a device may have nothing to grant."""
    return min(Fraction(asked or 0, max(1, whole)), Fraction(1))
