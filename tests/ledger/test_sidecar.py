"""A lease's rows kept outside the ledger: all that it is comes back, and nothing that no grant wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ledger_builders as build
import pytest

from nodeagent.domain.errors import IllegalMove, LedgerConflict
from nodeagent.domain.lease import LeaseState, SliceState
from nodeagent.domain.records import EffectState
from nodeagent.ledger.ledger import Ledger
from nodeagent.ledger.sidecar import sidecar_of


@pytest.fixture
def fresh(tmp_path: Path, clock: build.TurnedClock, migrated: Path) -> Iterator[Ledger]:
    """A new ledger that knows nothing."""
    path = tmp_path / "fresh" / "ledger.db"
    path.parent.mkdir(mode=0o700)
    shutil.copy(migrated, path)
    made = Ledger(path, clock)
    made.open()
    yield made
    made.close()


def granted(ledger: Ledger, *slices: Any, **changes: Any) -> int:
    """An active lease with a journal."""
    with ledger.write() as tx:
        lease = build.opened(tx, *slices or (build.placed(),), **changes)
        effect = tx.plan_effect(lease, "cgroup", {"lease": lease, "parent": None})
        tx.mark_effect(effect.id, EffectState.VERIFIED, {"path": "/x", "inode": 7})
        build.activated(tx, lease)
    return lease


def told(ledger: Ledger, lease: int) -> Any:
    """The sidecar as it comes out of a file."""
    sidecar = ledger.sidecar(lease)
    assert sidecar is not None
    return json.loads(json.dumps(sidecar.to_json()))


def test_what_comes_back_is_what_was(ledger: Ledger, fresh: Ledger) -> None:
    """Lease, slices, anchor, request id and journal; devices and pools as far as it needs them."""
    shared = build.placed("8-15", shared=True)
    leases = [granted(ledger, build.placed(), shared, request_id="a"), granted(ledger, shared)]
    for lease in leases:
        with fresh.write() as tx:
            tx.rebuild(sidecar_of(lease, told(ledger, lease)))
        was, now = ledger.lease(lease), fresh.lease(lease)
        assert [one.placed for one in now.slices] == [one.placed for one in was.slices]
        assert (now.anchor, now.request, now.environment, now.created_at) == (
            was.anchor,
            was.request,
            was.environment,
            was.created_at,
        )
    assert fresh.remembered(1000, "a") == ledger.remembered(1000, "a")
    assert [one.evidence for one in fresh.effects(leases[0])] == [{"path": "/x", "inode": 7}]
    assert fresh.check() == ()
    with fresh.write() as tx:
        build.released(tx, leases[0])
        assert build.opened(tx, build.placed()) > leases[1]


def test_a_lease_that_was_not_active_comes_back_releasing(ledger: Ledger, fresh: Ledger) -> None:
    """So that all that it still holds is proved clean once more; what was freed already is not held."""
    lease = granted(ledger, build.placed("0-3"), build.placed("4-7"))
    held = ledger.lease(lease).slices
    with ledger.write() as tx:
        build.released(tx, lease, quarantine=[held[1].id])
    with fresh.write() as tx:
        now = tx.rebuild(sidecar_of(lease, told(ledger, lease)))
    assert now.state is LeaseState.RELEASING
    assert [(one.state, str(one.placed.cus)) for one in now.slices] == [(SliceState.CLEANING, "4-7")]


def test_only_leases_that_were_answered_and_hold_something_have_one(ledger: Ledger, clock) -> None:
    """None of a queued, preparing or released lease, and none of another boot's."""
    active = granted(ledger)
    with ledger.write() as tx:
        queued = build.opened(tx, state=LeaseState.QUEUED)
        preparing = build.opened(tx, build.placed("4-7"))
        released = build.opened(tx, build.placed("8-11"))
        build.released(tx, released)
    assert ledger.sidecar_marks().keys() == {active}
    assert [ledger.sidecar(lease) for lease in (queued, preparing, released)] == [None] * 3
    clock.boot_id = "boot-b"
    assert ledger.sidecar_marks() == {}


def test_the_mark_changes_with_what_is_kept(ledger: Ledger, clock) -> None:
    """A renewed anchor, a further effect, a release; not by itself."""
    lease = granted(ledger)
    marks = [ledger.sidecar_marks()[lease]]
    assert ledger.sidecar(lease).mark == marks[0]
    with ledger.write() as tx:
        tx.set_anchor(lease, build.Anchor(build.AnchorKind.TTL, armed=True, deadline_ns=77, ttl_seconds=4))
    marks.append(ledger.sidecar_marks()[lease])
    with ledger.write() as tx:
        tx.plan_effect(lease, "process", {"pid": 1})
    marks.append(ledger.sidecar_marks()[lease])
    with ledger.write() as tx:
        tx.move_lease(lease, LeaseState.RELEASING)
    marks.append(ledger.sidecar_marks()[lease])
    assert all(mark not in marks[:at] for at, mark in enumerate(marks))
    assert ledger.sidecar_marks()[lease] == marks[-1]


BROKEN = {
    "another lease": {"lease": {"id": 1}},
    "no slice": {"slices": []},
    "a slice of another lease": {"slices": [{"lease": 99}]},
    "an unknown column": {"anchor": {"lease": 1, "x": 1}},
    "no rows": {"effects": "all"},
    "an unknown part": {"more": []},
    "another version": {"version": 0},
    "no mark": {"mark": None},
    "a row of no scalars": {"pools": [{"key": []}]},
    "a number out of range": {"pools": [{"grantable_bytes": 1 << 64}]},
}


@pytest.mark.parametrize("parts", BROKEN.values(), ids=BROKEN)
def test_what_is_no_sidecar_is_not_taken_for_one(ledger: Ledger, parts: dict[str, Any]) -> None:
    """Whatever a file says."""
    granted(ledger, build.placed("4-7"))
    lease = granted(ledger)
    with pytest.raises(LedgerConflict, match=f"lease {lease}"):
        sidecar_of(lease, {**told(ledger, lease), **parts})
    for whole in (None, [], "x", 1):
        with pytest.raises(LedgerConflict):
            sidecar_of(lease, whole)


REFUSED = {
    "its holder": ("lease", "holder_kind", "nobody"),
    "its request": ("lease", "request", "{}"),
    "a request that is no JSON": ("lease", "request", "x"),
    "its environment": ("lease", "environment", "x"),
    "its guarantee": ("lease", "guarantee", "{}"),
    "its boot": ("lease", "boot_id", "boot-z"),
    "its anchor": ("anchor", "kind", "x"),
    "a range of CUs": ("slices", "cus", "0-"),
    "more CUs than there are": ("slices", "cus", "0-400"),
    "other CUs than it counts": ("slices", "cu_requested", None),
    "too many bytes": ("slices", "vram_bytes", 1 << 60),
    "an epoch that is over": ("slices", "epoch", 9),
    "the type of a column": ("slices", "queue_slots", "many"),
    "the state of an effect": ("effects", "state", "x"),
    "an effect's arguments": ("effects", "arguments", "x"),
    "the bytes of its pool": ("pools", "grantable_bytes", -1),
}


@pytest.mark.parametrize(("part", "column", "value"), REFUSED.values(), ids=REFUSED)
def test_what_no_grant_wrote_is_refused_whole(ledger: Ledger, fresh: Ledger, part, column, value) -> None:
    """By the ledger's own rules, or because it cannot be read again; nothing of it is left."""
    lease = granted(ledger)
    kept = told(ledger, lease)
    rows = kept[part]
    kept[part] = (
        [{**row, column: value} for row in rows] if isinstance(rows, list) else {**rows, column: value}
    )
    with pytest.raises((LedgerConflict, IllegalMove)), fresh.write() as tx:
        tx.rebuild(sidecar_of(lease, kept))
    assert (fresh.leases(), fresh.held(), fresh.registered(), fresh.high_water()) == ((), (), (), 0)


def test_a_lease_below_the_high_water_mark_does_not_come_back(ledger: Ledger, fresh: Ledger) -> None:
    """Its id may have been fenced off since."""
    first, second = granted(ledger), granted(ledger, build.placed("4-7"))
    for lease in (second, first):
        sidecar = sidecar_of(lease, told(ledger, lease))
        if lease == first:
            with pytest.raises(LedgerConflict, match="never used again"), fresh.write() as tx:
                tx.rebuild(sidecar)
        else:
            with fresh.write() as tx:
                tx.rebuild(sidecar)
    assert [one.id for one in fresh.live()] == [second]


def test_the_journal_of_a_sidecar_is_its_own(ledger: Ledger) -> None:
    """An effect that names another lease, or is no journal's, is not acted on."""
    lease = granted(ledger)
    assert [kind for kind, _, _ in sidecar_of(lease, told(ledger, lease)).effects()] == ["cgroup"]
    for change in ({"arguments": '{"lease": 99}'}, {"arguments": "[]"}, {"evidence": "x"}, {"kind": None}):
        kept = told(ledger, lease)
        kept["effects"] = [{**row, **change} for row in kept["effects"]]
        if change == {"kind": None}:
            del kept["effects"][0]["kind"]
        with pytest.raises(LedgerConflict, match="journal"):
            list(sidecar_of(lease, kept).effects())
