"""Devices, slices and leases for the ledger's tests, and a clock that the test turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nodeagent.domain.cuset import CuSet
from nodeagent.domain.device import Device, DeviceState, Pool
from nodeagent.domain.geometry import Geometry
from nodeagent.domain.guarantee import Guarantee
from nodeagent.domain.lease import (
    Anchor,
    AnchorKind,
    Holder,
    HolderKind,
    LeaseState,
    PlacedSlice,
    SliceState,
)
from nodeagent.domain.request import Request, Shape
from nodeagent.ledger.transaction import Transaction

GIB = 1 << 30
CARD = "0000:c1:00.0/0"
OTHER = "0000:c2:00.0/0"


@dataclass
class TurnedClock:
    """A clock that stands until a test turns it."""

    boot_id: str = "boot-a"
    now_ns: int = 1_000_000_000
    now: float = 1_800_000_000.0

    def boot_ns(self) -> int:
        return self.now_ns

    def wall(self) -> float:
        return self.now


def pool(key: str = "pool", grantable_bytes: int = 64 * GIB) -> Pool:
    return Pool(key, "drm/0000:c1:00.0/vram", 64 * GIB, grantable_bytes)


def device(key: str = CARD, *, epoch: int = 0, cus: int = 32, slots: int = 8, pool: str = "pool") -> Device:
    return Device(
        key=key,
        epoch=epoch,
        pci=key.partition("/")[0],
        partition=0,
        render_node=None,
        kfd_node=1,
        ordinal=0,
        gpu_id=None,
        unique_id=0,
        product="made up",
        gfx=None,
        geometry=Geometry(cus=cus, xccs=1, engines=1, arrays=1, array_cus=cus, pair=1),
        pool=pool,
        vram_bytes=64 * GIB,
        grantable_bytes=64 * GIB,
        queue_slots=slots,
        numa_node=None,
        hive=0,
        peers=(),
        compute_partition="SPX",
        memory_partition="NPS1",
        state=DeviceState.HEALTHY,
        reason=None,
        uuid=None,
    )


def placed(cus: str = "0-3", **changes: Any) -> PlacedSlice:
    values: dict[str, Any] = {
        "device": CARD,
        "epoch": 0,
        "pool": "pool",
        "cus": CuSet.parse(cus),
        "shared": False,
        "exclusive": False,
        "whole": False,
        "cu_requested": 4,
        "effective_cus": 4,
        "vram_bytes": GIB,
        "queue_slots": 1,
        "shape": Shape.EVEN,
    }
    return PlacedSlice(**{**values, **changes})


def opened(tx: Transaction, *slices: PlacedSlice, uid: int = 1000, **changes: Any) -> int:
    """Open a preparing lease of *slices*."""
    values: dict[str, Any] = {
        "state": LeaseState.PREPARING,
        "holder": Holder(HolderKind.CLIENT, "test", uid),
        "gid": uid,
        "anchor": Anchor(AnchorKind.TTL, armed=True, deadline_ns=5_000_000_000, ttl_seconds=4),
        "request": Request(),
        "request_id": None,
        "digest": "",
        "placed": slices,
    }
    return tx.open_lease(**{**values, **changes})


def activated(tx: Transaction, lease: int) -> None:
    anchor = Anchor(AnchorKind.TTL, armed=True, deadline_ns=9_000_000_000, ttl_seconds=4)
    tx.activate(
        lease, guarantee=Guarantee(), environment={"GPULEASE_ID": str(lease)}, cgroup=None, anchor=anchor
    )


def released(tx: Transaction, lease: int, *, quarantine: Sequence[int] = ()) -> None:
    """Take a preparing or active lease to its end; slices of *quarantine* stay unclean."""
    ids = [each.id for each in tx.held() if each.lease == lease]
    tx.move_lease(lease, LeaseState.RELEASING)
    tx.move_slices(lease, SliceState.CLEANING)
    tx.move_slices(lease, SliceState.FREE, only=[each for each in ids if each not in quarantine])
    tx.move_slices(lease, SliceState.QUARANTINED, only=quarantine)
    tx.move_lease(lease, LeaseState.FAILED if quarantine else LeaseState.RELEASED)


_WAYS: dict[LeaseState, tuple[LeaseState, ...]] = {
    LeaseState.QUEUED: (),
    LeaseState.CANCELLED: (LeaseState.CANCELLED,),
    LeaseState.PREPARING: (),
    LeaseState.ACTIVE: (LeaseState.ACTIVE,),
    LeaseState.LOST: (LeaseState.ACTIVE, LeaseState.LOST),
    LeaseState.RELEASING: (LeaseState.RELEASING,),
    LeaseState.RELEASED: (LeaseState.RELEASING, LeaseState.RELEASED),
    LeaseState.FAILED: (LeaseState.RELEASING, LeaseState.FAILED),
}


def lease_in(tx: Transaction, state: LeaseState) -> int:
    """Open a lease and take it to *state*; in RELEASING and later its slice is free."""
    queued = state in (LeaseState.QUEUED, LeaseState.CANCELLED)
    lease = opened(tx, state=LeaseState.QUEUED) if queued else opened(tx, placed("0"))
    for step in _WAYS[state]:
        tx.move_lease(lease, step)
        if step is LeaseState.RELEASING:
            tx.move_slices(lease, SliceState.CLEANING)
            tx.move_slices(lease, SliceState.FREE)
    return lease
