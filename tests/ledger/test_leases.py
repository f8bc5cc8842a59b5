"""What goes into the ledger comes out of it, and what is asked for is what comes."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import ledger_builders as build
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_builders import CARD, OTHER, activated, opened, placed, released

from nodeagent.domain.errors import IllegalMove, LedgerConflict, LedgerUnavailable, UnknownThing
from nodeagent.domain.guarantee import Compute, Guarantee, Memory, Requirement, Visibility
from nodeagent.domain.lease import Anchor, AnchorKind, Holder, HolderKind, LeaseState, SliceState
from nodeagent.domain.records import Counts, EffectState, Remembered
from nodeagent.domain.request import Policy, Priority, Request, Shape, SliceRequest
from nodeagent.ledger import rows
from nodeagent.ledger.ledger import Ledger

DAY_NS = 24 * 3600 * 10**9


def optional(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | strategy


NAMES = st.lists(st.text(max_size=8), max_size=3).map(tuple)
REQUESTS = st.builds(
    Request,
    slices=st.lists(
        st.builds(
            SliceRequest,
            cus=optional(st.integers(1, 400)),
            cu_percent=optional(st.floats(0.1, 100)),
            vram_bytes=optional(st.integers(0, 1 << 40)),
            queue_slots=optional(st.integers(1, 24)),
            device=NAMES,
            not_device=NAMES,
            type=NAMES,
            not_type=NAMES,
            partition=st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    require=st.builds(Requirement),
)


@given(REQUESTS)
def test_a_request_round_trips(request: Request) -> None:
    """Any request is read back equal, with its types."""
    assert rows.request_of(rows.request_text(request)) == request


def test_an_ordinary_request_is_as_older_agents_read_it() -> None:
    """They know no partitions: a rollback must find its leases' requests."""
    assert "partition" not in rows.request_text(Request())


def test_a_lease_round_trips(ledger: Ledger, clock: build.TurnedClock) -> None:
    """Every field of an active lease is read back as it was written."""
    request = Request(
        slices=(SliceRequest(cu_percent=12.5, shape=Shape.EXACT, type=("MI300*",)), SliceRequest()),
        placement=Policy.TOPOLOGY,
        numa_bind=True,
        link_bind=True,
        require=Requirement(memory=Memory.ADVISORY, compute=Compute.MASK, visibility=Visibility.ENVIRONMENT),
        priority=Priority.LOW,
    )
    holder = Holder(HolderKind.PROCESS, "4711", 1234)
    slices = (placed("0-2,5", shape=Shape.EXACT), placed("0-31", device=OTHER, exclusive=True, whole=True))
    anchor = Anchor(AnchorKind.CGROUP, True, 7, None, 4711, 99, "gpulease.slice/1", 2**40)
    guarantee = Guarantee(Memory.ADVISORY, Compute.MASK, Visibility.ENVIRONMENT)
    with ledger.write() as tx:
        lease_id = opened(tx, *slices, holder=holder, request=request, request_id="r-1", wait_until_ns=3)
        tx.activate(
            lease_id, guarantee=guarantee, environment={"A": "1", "B": None}, cgroup="/sys/x", anchor=anchor
        )
    lease = ledger.lease(lease_id)
    assert lease is not None
    assert (lease.state, lease.holder, lease.anchor) == (LeaseState.ACTIVE, holder, anchor)
    assert (lease.request, lease.request_id, lease.guarantee) == (request, "r-1", guarantee)
    assert (lease.environment, lease.cgroup) == ({"A": "1", "B": None}, "/sys/x")
    assert (lease.boot_id, lease.created_ns, lease.created_at) == (
        clock.boot_id,
        clock.now_ns,
        clock.now,
    )
    assert (lease.wait_until_ns, lease.ended_at, lease.reason) == (3, None, None)
    assert tuple(each.placed for each in lease.slices) == slices
    assert {each.state for each in lease.slices} == {SliceState.HELD}
    assert ledger.held() == lease.slices


def test_an_ended_lease_keeps_its_story(ledger: Ledger, clock: build.TurnedClock) -> None:
    """After its end a lease tells when and why, and shows its slices as free."""
    with ledger.write() as tx:
        lease_id = opened(tx, placed())
        tx.move_lease(lease_id, LeaseState.RELEASING, reason="its process ended")
        clock.now += 5
        tx.move_slices(lease_id, SliceState.CLEANING)
        tx.move_slices(lease_id, SliceState.FREE)
        tx.move_lease(lease_id, LeaseState.RELEASED)
    lease = ledger.lease(lease_id)
    assert lease is not None
    assert (lease.state, lease.reason, lease.ended_at) == (
        LeaseState.RELEASED,
        "its process ended",
        clock.now,
    )
    assert [each.state for each in lease.slices] == [SliceState.FREE]
    assert ledger.held() == ledger.live() == ()


def test_only_an_armed_deadline_is_a_known_end(ledger: Ledger) -> None:
    """held() tells the end of slices whose lease has one; the deadline for a start is no end."""
    with ledger.write() as tx:
        opened(tx, placed("0"))
        opened(tx, placed("1"), anchor=Anchor(AnchorKind.PROCESS, deadline_ns=7, pid=1, start_time=2))
        opened(tx, placed("2"), anchor=Anchor(AnchorKind.CGROUP, armed=True, deadline_ns=9))
    assert [each.ends_ns for each in ledger.held()] == [5_000_000_000, None, 9]


def test_quarantined_slices_are_listed(ledger: Ledger) -> None:
    """quarantined() lists exactly the slices that are not proved clean, with no end."""
    with ledger.write() as tx:
        lease = opened(tx, placed("0"), placed("0", device=OTHER))
        opened(tx, placed("1"))
        first, _, _ = sorted(each.id for each in tx.held())
        released(tx, lease, quarantine=[first])
    (unclean,) = ledger.quarantined()
    assert (unclean.id, unclean.lease, unclean.ends_ns) == (first, lease, None)
    found = ledger.lease(lease)
    assert found is not None
    assert found.state is LeaseState.FAILED


def test_leases_are_filtered(ledger: Ledger) -> None:
    """Every filter of leases() narrows the list to what it names."""
    with ledger.write() as tx:
        queued = opened(tx, state=LeaseState.QUEUED, uid=1)
        here = opened(tx, placed("0"), uid=1)
        there = opened(tx, placed("0", device=OTHER), holder=Holder(HolderKind.SLURM, "77", 2))

    def ids(**asked: object) -> list[int]:
        return [each.id for each in ledger.leases(**asked)]  # type: ignore[arg-type]

    assert ids() == [queued, here, there]
    assert ids(uid=1) == [queued, here]
    assert ids(state={LeaseState.QUEUED}) == [queued]
    assert ids(state=()) == []
    assert ids(devices=[OTHER]) == [there]
    assert ids(holder=(HolderKind.SLURM, "77")) == [there]
    assert ids(uid=1, devices=[CARD]) == [here]


def test_leases_are_paged(ledger: Ledger) -> None:
    """The last id of a page is the cursor for the next one."""
    with ledger.write() as tx:
        made = [opened(tx, placed(str(cu))) for cu in range(5)]
    first = ledger.leases(limit=2)
    assert [each.id for each in first] == made[:2]
    assert [each.id for each in ledger.leases(after=first[-1].id, limit=10)] == made[2:]
    assert ledger.leases(limit=-1) == ()


def test_leases_of_a_uid_are_counted(ledger: Ledger) -> None:
    """counts() tells live and queued leases apart and leaves ended ones and other uids out."""
    with ledger.write() as tx:
        opened(tx, state=LeaseState.QUEUED)
        opened(tx, placed("0"))
        released(tx, opened(tx, placed("1")))
        opened(tx, placed("2"), uid=5)
        assert tx.counts(1000) == Counts(live=1, queued=1)
    assert ledger.counts(1000) == Counts(live=1, queued=1)
    assert ledger.counts(99) == Counts(live=0, queued=0)


def test_leases_count_for_the_uid_that_they_are_charged_to(ledger: Ledger) -> None:
    """A lease of a subordinate uid uses up its owner's limits, and not its own."""
    with ledger.write() as tx:
        opened(tx, placed("0"), uid=100_001, charged_uid=1000)
        opened(tx, placed("1"), uid=1000)
    assert ledger.counts(1000) == Counts(live=2, queued=0)
    assert ledger.counts(100_001) == Counts(live=0, queued=0)


def test_a_queued_lease_is_placed_later(ledger: Ledger) -> None:
    """place() gives a queued lease its slices and makes it preparing."""
    with ledger.write() as tx:
        lease_id = opened(tx, state=LeaseState.QUEUED)
    with ledger.write() as tx:
        tx.place(lease_id, [placed("3")])
    lease = ledger.lease(lease_id)
    assert lease is not None
    assert lease.state is LeaseState.PREPARING
    assert [str(each.placed.cus) for each in lease.slices] == ["3"]


def test_a_request_id_is_remembered_per_uid(ledger: Ledger) -> None:
    """A request id names its uid's lease, and says nothing to another uid."""
    with ledger.write() as tx:
        lease = opened(tx, placed(), request_id="k", digest="d")
    assert ledger.remembered(1000, "k") == Remembered(lease, "d")
    assert ledger.remembered(1001, "k") is None


def test_a_request_id_has_one_lease(ledger: Ledger) -> None:
    """A second lease for a remembered request id is refused, and its slices with it."""
    with ledger.write() as tx:
        opened(tx, placed("0"), request_id="k")
    with pytest.raises(LedgerConflict, match="request id"), ledger.write() as tx:
        opened(tx, placed("1"), request_id="k")
    assert len(ledger.held()) == 1


@pytest.mark.parametrize("later", ["a day", "a boot"])
def test_a_request_id_is_forgotten(ledger: Ledger, clock: build.TurnedClock, later: str) -> None:
    """After 24 h, or in another boot, the same request id gets a new lease."""
    with ledger.write() as tx:
        first = opened(tx, placed("0"), request_id="k")
    clock.now_ns += DAY_NS if later == "a day" else 0
    clock.boot_id = "boot-b" if later == "a boot" else clock.boot_id
    assert ledger.remembered(1000, "k") is None
    with ledger.write() as tx:
        second = opened(tx, placed("1"), request_id="k")
        assert tx.forget_requests(clock.now_ns) == 0
    assert second > first
    with ledger.write() as tx:
        assert tx.forget_requests(clock.now_ns + 1) == 1


def test_the_journal_keeps_its_order(ledger: Ledger, clock: build.TurnedClock) -> None:
    """Effects come back in the order in which they were planned, with their last state and evidence."""
    with ledger.write() as tx:
        lease = opened(tx, placed())
        made = [tx.plan_effect(lease, kind, {"path": ["a", 1]}) for kind in ("cgroup", "limit")]
    assert ledger.effects(lease) == tuple(made)
    clock.now_ns += 1
    with ledger.write() as tx:
        tx.mark_effect(made[0].id, EffectState.APPLIED, {"inode": 5})
        tx.mark_effect(made[0].id, EffectState.VERIFIED)
    first = replace(made[0], state=EffectState.VERIFIED, evidence={"inode": 5}, at_ns=clock.now_ns)
    assert ledger.effects(lease) == (first, made[1])
    with pytest.raises(UnknownThing), ledger.write() as tx:
        tx.mark_effect(99, EffectState.UNDONE)


def test_events_are_a_cursor(ledger: Ledger, clock: build.TurnedClock) -> None:
    """Events come in order from after the cursor, all or those of one lease."""
    with ledger.write() as tx:
        first = tx.event("started", uid=None)
        second = tx.event("granted", uid=7, lease=3, device=CARD, reason="asked", data={"cus": "0-3"})
    assert [each.id for each in ledger.events()] == [first, second]
    assert [each.id for each in ledger.events(after=first)] == [second]
    (event,) = ledger.events(lease=3)
    assert (event.kind, event.uid, event.lease, event.device) == ("granted", 7, 3, CARD)
    assert (event.reason, event.data) == ("asked", {"cus": "0-3"})
    assert (event.boot_id, event.boot_ns, event.at) == (clock.boot_id, clock.now_ns, clock.now)


def test_a_uid_sees_its_own_events(ledger: Ledger) -> None:
    """events(uid=…) has what that uid did and what befell its leases, and nothing of others."""
    with ledger.write() as tx:
        mine = opened(tx, placed("0"), uid=7)
        other = opened(tx, placed("1"), uid=8)
        wanted = [tx.event("refused", uid=7), tx.event("reaped", uid=None, lease=mine)]
        tx.event("granted", uid=8, lease=other)
        tx.event("started", uid=None)
    assert [each.id for each in ledger.events(uid=7)] == wanted


def test_an_event_is_bounded(ledger: Ledger) -> None:
    """Overlong texts are cut, data too large is left out and says so, and odd bytes do no harm."""
    with ledger.write() as tx:
        tx.event("lost", uid=None, reason="x\udc80" * 5000, data={"much": "y" * 100_000})
    (event,) = ledger.events()
    assert event.reason is not None
    assert event.data is not None
    assert len(event.reason) == 1024
    assert event.reason.startswith("x?x")
    assert "left_out" in event.data


def test_a_drain_stands_until_undrained(ledger: Ledger, clock: build.TurnedClock) -> None:
    """The latest drain of a device is the one that stands."""
    with ledger.write() as tx:
        tx.drain(CARD, reason="fan", uid=0, until_ns=None)
        tx.drain(CARD, reason="fans", uid=1, until_ns=5)
    (drain,) = ledger.drains()
    assert (drain.device, drain.reason, drain.uid, drain.until_ns) == (CARD, "fans", 1, 5)
    assert (drain.boot_id, drain.at) == (clock.boot_id, clock.now)
    with ledger.write() as tx:
        assert (tx.undrain(CARD), tx.undrain(CARD)) == (True, False)
    assert ledger.drains() == ()


def test_devices_are_registered_by_epoch(ledger: Ledger) -> None:
    """registered() tells each device's newest epoch; a device that is not listed again stays."""
    with ledger.write() as tx:
        tx.register([build.device(epoch=3, cus=8)], [])
    found = {each.device: (each.epoch, each.cus, each.compute_partition) for each in ledger.registered()}
    assert found == {CARD: (3, 8, "SPX"), OTHER: (0, 32, "SPX")}


def test_pruning_takes_what_is_old_and_clean(ledger: Ledger, clock: build.TurnedClock) -> None:
    """Old ended leases go with their journal; live, recent and quarantined ones stay."""
    with ledger.write() as tx:
        old = opened(tx, placed("0"), request_id="k")
        tx.plan_effect(old, "cgroup", {})
        released(tx, old)
        unclean = opened(tx, placed("0"))
        released(tx, unclean, quarantine=[each.id for each in tx.held()])
        live = opened(tx, placed("1"))
    clock.now += 10
    with ledger.write() as tx:
        recent = opened(tx, placed("2"))
        released(tx, recent)
        assert tx.prune(leases_before=clock.now - 5, max_events=10, max_event_bytes=10**6) == 1
    assert [each.id for each in ledger.leases()] == [unclean, live, recent]
    assert ledger.effects(old) == ()


@pytest.mark.parametrize(
    ("most", "most_bytes", "left"), [(2, 10**6, 2), (10, 600, 2), (0, 10**6, 0), (10, 10**6, 5)]
)
def test_events_are_pruned_by_rows_and_bytes(ledger: Ledger, most: int, most_bytes: int, left: int) -> None:
    """The newest events stay, as many as both limits allow; ids are not given again."""
    with ledger.write() as tx:
        made = [tx.event("granted", uid=1, lease=number, reason="r" * 50) for number in range(5)]
        tx.prune(leases_before=0, max_events=most, max_event_bytes=most_bytes)
    assert [each.id for each in ledger.events()] == made[5 - left :]
    with ledger.write() as tx:
        assert tx.event("granted", uid=1) > made[-1]


def test_a_failed_transaction_leaves_nothing(ledger: Ledger) -> None:
    """An exception undoes all that its transaction wrote."""
    with pytest.raises(KeyError), ledger.write() as tx:
        opened(tx, placed())
        tx.event("granted", uid=1)
        raise KeyError
    assert ledger.held() == ledger.events() == ledger.leases() == ()


def test_readers_see_committed_writes_only(ledger: Ledger) -> None:
    """A read beside a transaction does not wait for it and sees nothing of it."""
    with ledger.write() as tx:
        opened(tx, placed())
        assert ledger.held() == ()
        assert len(tx.held()) == 1
    assert len(ledger.held()) == 1


def test_a_closed_ledger_says_so(ledger: Ledger) -> None:
    """After close, reads and writes raise LedgerUnavailable."""
    ledger.close()
    with pytest.raises(LedgerUnavailable, match="not open"):
        ledger.held()
    with pytest.raises(LedgerUnavailable, match="not open"), ledger.write():
        pass
    assert not ledger.health().writable


def test_the_writer_waits_a_bounded_time(path: Path, clock: build.TurnedClock) -> None:
    """A second writer gives up with LedgerUnavailable when the first one stays."""
    ledger = Ledger(path, clock, wait_seconds=0.01)
    ledger.open()
    with ledger.write(), pytest.raises(LedgerUnavailable, match="busy"), ledger.write():
        pass
    ledger.close()


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("SELECT 1 FROM slices WHERE slices.state <> 'free' AND device = 'x' AND epoch = 0", "live_device"),
        ("SELECT sum(vram_bytes) FROM slices WHERE pool = 'x' AND slices.state <> 'free'", "live_pool"),
        ("SELECT 1 FROM slices WHERE slices.state <> 'free'", "ix_slices_live"),
        ("SELECT 1 FROM leases WHERE leases.ended_ns IS NULL AND charged_uid = 1", "ix_leases_live"),
        ("SELECT 1 FROM leases WHERE leases.ended_ns IS NULL", "ix_leases_live"),
        ("SELECT 1 FROM held_cus WHERE slice = 1", "ix_held_cus_slice"),
    ],
)
def test_live_lookups_use_the_partial_indexes(sql: sqlite3.Connection, query: str, index: str) -> None:
    """What is asked on every grant reads live rows only, however long the history."""
    plan = " ".join(str(row[3]) for row in sql.execute(f"EXPLAIN QUERY PLAN {query}"))
    assert index in plan


def test_activation_needs_a_preparing_lease(ledger: Ledger) -> None:
    """A lease is activated once."""
    with ledger.write() as tx:
        lease = opened(tx, placed())
        activated(tx, lease)
    with pytest.raises(IllegalMove), ledger.write() as tx:
        activated(tx, lease)
