"""What counts as work, and when that cannot be told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.domain import idle, watch
from nodeagent.domain.cuset import CuSet
from nodeagent.domain.device import Device, Inventory
from nodeagent.domain.lease import (
    Anchor,
    AnchorKind,
    HeldSlice,
    Holder,
    HolderKind,
    Lease,
    LeaseState,
    PlacedSlice,
    SliceState,
)
from nodeagent.domain.request import Request, Shape
from nodeagent.domain.watch import DrmClient, KfdUse, Sample

LEASE = Lease(
    id=7,
    state=LeaseState.ACTIVE,
    holder=Holder(HolderKind.CLIENT, "x", 1000),
    anchor=Anchor(AnchorKind.TTL, armed=True),
    request=Request(),
    request_id=None,
    boot_id="boot",
    created_ns=0,
    created_at=0.0,
)
PID = 40
CUS = CuSet.span(0, 8)
ROW = KfdUse(PID, 0x1000, vram_bytes=1 << 30, queues=("0",), cu_occupancy=0)
DRM = DrmClient(frozenset({PID}), None, 128, 1, 0, 0, engine_ns=5)


def sample(*rows: KfdUse, clients: tuple[DrmClient, ...] = ()) -> Sample:
    """A look at processes of lease 7."""
    pids = {one.pid for one in rows} | {pid for one in clients for pid in one.pids}
    return Sample(rows, clients, dict.fromkeys(pids, LEASE.id))


def works(before: Sample, now: Sample) -> bool:
    return idle.works(watch.activity(before, LEASE.id), watch.activity(now, LEASE.id))


def test_memory_that_is_held_is_no_work() -> None:
    """Nor are queues with nothing in them: it takes something that moves."""
    assert not works(sample(ROW), sample(ROW))
    assert not works(sample(), sample())


@pytest.mark.parametrize(
    "now",
    [
        sample(replace(ROW, cu_occupancy=1)),
        sample(replace(ROW, vram_bytes=2 << 30)),
        sample(replace(ROW, queues=("1",))),
        sample(replace(ROW, evicted_ms=1)),
        sample(replace(ROW, pid=41)),
        sample(ROW, clients=(DRM,)),
    ],
    ids=["waves", "memory", "queue", "evicted", "process", "engine"],
)
def test_whatever_moves_is_work(now: Sample) -> None:
    """Waves at the look, and between two looks allocations, queues, evictions, processes, time on engines."""
    assert works(sample(ROW), now)


def on(device: Device, row: KfdUse, cus: CuSet = CUS, *, whole: bool = False) -> bool:
    """Whether work of a lease with these CUs of *device* could be unseen, with this use of it."""
    placed = PlacedSlice(
        device=device.key,
        epoch=1,
        pool=device.pool,
        cus=cus,
        shared=False,
        exclusive=False,
        whole=whole,
        cu_requested=8,
        effective_cus=8,
        vram_bytes=1 << 30,
        queue_slots=1,
        shape=Shape.EVEN,
    )
    lease = replace(LEASE, slices=(HeldSlice(1, LEASE.id, 1000, placed, SliceState.HELD),))
    return idle.unmeasured(lease, sample(replace(row, gpu_id=device.gpu_id)), Inventory(1, (device,), ()), ())


def test_queues_whose_waves_nobody_counts_are_not_measured(machines) -> None:
    """GPUs beside GFX9 tell no occupancy: such a lease may work or not. Without queues there is no work."""
    device = machines.device("mi210")
    assert on(device, replace(ROW, cu_occupancy=None))
    assert not on(device, replace(ROW, cu_occupancy=None, queues=()))
    assert not on(device, ROW)


def test_waves_are_counted_on_the_first_xcc_of_a_card_alone(machines) -> None:
    """A further partition, and CUs on other XCCs, always read 0; so may a GPU that nobody has listed."""
    whole, part = machines.device("mi300x-spx"), machines.device("mi300x-cpx", partition=3)
    xccs = whole.geometry.xccs
    assert on(part, ROW)
    assert not on(replace(part, partition=0), ROW)
    assert not on(whole, ROW, CuSet.of(range(2 * xccs)))
    assert on(whole, ROW, CuSet.of(range(1, xccs)))
    assert not on(whole, ROW, CuSet(), whole=True)
    stranger = sample(replace(ROW, gpu_id=0x9999))
    assert idle.unmeasured(LEASE, stranger, Inventory(1, (whole,), ()), ())


@pytest.mark.parametrize("kind", AnchorKind)
def test_a_lease_begins_with_its_holder(kind: AnchorKind) -> None:
    """A process or container that was seen alive; a lease held by time alone when it is seen on a GPU."""
    own = kind in (AnchorKind.PROCESS, AnchorKind.CGROUP, AnchorKind.CONTAINER)
    armed, unarmed = (replace(LEASE, anchor=Anchor(kind, armed=armed)) for armed in (True, False))
    assert idle.has_begun(armed, sample()) is own
    assert not idle.has_begun(unarmed, sample())
    assert idle.has_begun(unarmed, sample(ROW))
