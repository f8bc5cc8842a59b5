"""Whose the VRAM is, who uses too much and who does not get on, from samples alone."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.domain.cuset import CuSet
from nodeagent.domain.device import Device, DeviceState, Inventory, Pool
from nodeagent.domain.lease import HeldSlice, PlacedSlice, SliceState
from nodeagent.domain.request import Shape
from nodeagent.domain.watch import (
    ALLOWANCE_BYTES,
    Activity,
    DrmClient,
    KfdUse,
    Sample,
    activity,
    by_owner,
    follow,
    granted,
    less_foreign,
    overuse,
    used,
)

GIB = 1 << 30
PCI = "0000:c1:00.0"
A = f"{PCI}/0"
REGION = f"drm/{PCI}/vram"


def device(partition: int = 0, gpu_id: int = 11, minor: int = 128) -> Device:
    return Device(
        key=f"{PCI}/{partition}",
        epoch=1,
        pci=PCI,
        partition=partition,
        render_node=f"renderD{minor}",
        kfd_node=1,
        ordinal=partition,
        gpu_id=gpu_id,
        unique_id=0,
        product="made up",
        gfx="gfx942",
        geometry=None,
        pool=PCI,
        vram_bytes=64 * GIB,
        grantable_bytes=60 * GIB,
        queue_slots=24,
        numa_node=None,
        hive=0,
        peers=(),
        compute_partition=None,
        memory_partition=None,
        state=DeviceState.HEALTHY,
        reason=None,
        uuid=None,
    )


ONE = Inventory(1, (device(),), (Pool(PCI, REGION, 64 * GIB, 60 * GIB),))


def held(vram_bytes: int, lease: int = 7) -> HeldSlice:
    placed = PlacedSlice(
        device=A,
        epoch=1,
        pool=PCI,
        cus=CuSet.span(0, 8),
        shared=False,
        exclusive=False,
        whole=False,
        cu_requested=8,
        effective_cus=8,
        vram_bytes=vram_bytes,
        queue_slots=1,
        shape=Shape.EVEN,
    )
    return HeldSlice(1, lease, 1000, placed, SliceState.HELD)


def client(pids: set[int], resident: int, shared: int | None = 0, number: int = 1) -> DrmClient:
    return DrmClient(frozenset(pids), PCI, 128, number, resident, shared)


def test_a_buffer_that_both_sources_show_counts_once() -> None:
    """KFD's memory is in the DRM client too: the larger figure counts, not the sum."""
    sample = Sample((KfdUse(5, 11, 4 * GIB),), (client({5}, 5 * GIB),), {5: 7})
    assert used(sample, ONE) == {(5, A): 5 * GIB}


def test_memory_of_others_is_not_the_leases() -> None:
    """What a client shares was allocated by somebody else, or is counted where it was allocated."""
    sample = Sample((KfdUse(5, 11, GIB),), (client({5}, 9 * GIB, shared=9 * GIB),), {5: 7})
    assert used(sample, ONE) == {(5, A): GIB}


def test_a_kernel_that_tells_no_sharing_charges_no_lease() -> None:
    """Without drm-shared-vram a lease is charged by KFD's figure alone, a foreign user by what is there."""
    clients = (client({5}, 9 * GIB, shared=None), client({6}, 3 * GIB, shared=None, number=2))
    sample = Sample((KfdUse(5, 11, GIB),), clients, {5: 7, 6: None})
    assert used(sample, ONE) == {(5, A): GIB, (6, A): 3 * GIB}


def test_a_client_open_in_two_leases_is_nobodys() -> None:
    """A descriptor that was passed on makes neither lease pay for the other."""
    sample = Sample((), (client({5, 6}, 9 * GIB),), {5: 7, 6: 8})
    assert used(sample, ONE) == {}


def test_an_inherited_client_counts_once() -> None:
    """Parent and child have one client open: its memory is there once."""
    sample = Sample((), (client({5, 6}, 9 * GIB),), {5: 7, 6: 7})
    assert by_owner(used(sample, ONE), sample.owners) == {7: {A: 9 * GIB}}


def test_a_process_that_ended_counts_nowhere() -> None:
    """Rows of a pid that nobody owns by now are left out."""
    assert used(Sample((KfdUse(5, 11, GIB),), (), {}), ONE) == {}


def test_a_partition_is_known_by_its_render_node() -> None:
    """Partitions share a PCI address, and their nodes tell none."""
    both = Inventory(1, (device(), device(1, 12, 129)), ONE.pools)
    unnamed = replace(client({5}, GIB), pci=None, minor=129)
    assert used(Sample((), (unnamed,), {5: 7}), both) == {(5, f"{PCI}/1"): GIB}
    lost = replace(unnamed, pci=PCI, minor=None)
    assert used(Sample((), (lost,), {5: 7}), both) == {}


def test_overuse_begins_beyond_grant_and_tolerance() -> None:
    """Up to the grant, 2 % of it and 64 MiB nothing is said; a byte more is over-use."""
    given = granted((held(10 * GIB), held(10 * GIB)), ONE)
    edge = int(20 * GIB * 1.02) + ALLOWANCE_BYTES
    assert overuse(given, {REGION: edge}, 2) == ()
    (over,) = overuse(given, {REGION: edge + 1}, 2)
    assert (over.region, over.granted_bytes, over.used_bytes) == (REGION, 20 * GIB, edge + 1)


def test_memory_where_nothing_was_granted_is_overuse() -> None:
    """A lease that allocates on another card is over a grant of nothing."""
    assert overuse({}, {REGION: GIB}, 2)


def test_foreign_memory_is_not_granted() -> None:
    """It is taken off the pool and the device, and shown on the device."""
    left = less_foreign(ONE, {A: 20 * GIB}, ())
    assert left.pools[0].grantable_bytes == left.devices[0].grantable_bytes == 40 * GIB
    assert left.devices[0].foreign_bytes == 20 * GIB
    assert left.pools[0].vram_bytes == 64 * GIB


def test_foreign_memory_never_takes_what_is_held() -> None:
    """Live leases keep theirs, however much strangers use."""
    left = less_foreign(ONE, {A: 59 * GIB}, (held(30 * GIB),))
    assert left.pools[0].grantable_bytes == left.devices[0].grantable_bytes == 30 * GIB


def looks(*rows: KfdUse) -> list[Activity]:
    return [activity(Sample((row,), (), {5: 7}), 7) for row in rows]


def test_waves_that_stay_and_nothing_that_moves_is_stillness() -> None:
    """The time runs from the look after which nothing moved."""
    busy = KfdUse(5, 11, GIB, ("5/1",), 40)
    first, second, third = looks(busy, busy, busy)
    still = follow(follow(follow(None, first, 0), second, 5), third, 9)
    assert still.why is not None
    assert still.since_ns == 5


def test_any_sign_of_progress_begins_anew() -> None:
    """Other waves, memory, queues or engine time are progress; so is an idle GPU."""
    busy = KfdUse(5, 11, GIB, ("5/1",), 40)
    (before,) = looks(busy)
    moved = [
        replace(busy, cu_occupancy=39),
        replace(busy, vram_bytes=2 * GIB),
        replace(busy, queues=("5/1", "5/2")),
        replace(busy, queues=()),
        replace(busy, cu_occupancy=None),
    ]
    for after in looks(*moved):
        assert follow(follow(None, before, 0), after, 5).why is None
    timed = activity(Sample((busy,), (replace(client({5}, 0), engine_ns=9),), {5: 7}), 7)
    assert follow(follow(None, before, 0), timed, 5).why is None


def test_idle_queues_are_no_stillness() -> None:
    """A program that waits for its user has queues and no waves."""
    first, second = looks(*[KfdUse(5, 11, GIB, ("5/1",), 0)] * 2)
    assert follow(follow(None, first, 0), second, 5).why is None


def test_queues_that_are_evicted_again_and_again_do_not_get_on() -> None:
    """Evicted time that grows from look to look is told as such."""
    rows = [KfdUse(5, 11, GIB, ("5/1",), 0, evicted_ms=ms) for ms in (0, 900, 1900)]
    first, second, third = looks(*rows)
    still = follow(follow(follow(None, first, 0), second, 5), third, 9)
    assert still.why is not None
    assert "evicted" in still.why
    assert still.since_ns == 5
