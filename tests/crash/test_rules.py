"""The harness's own rules: each wrong state that they are there for is told, and a right one is not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.beside import sidecar_for
from tests.crash.checker import at_any_instant, when_answered, when_settled, when_started
from tests.crash.hooked import Limits, Usage
from tests.crash.ledger_copy import Lease, Ledger, Slice, cus_of
from tests.crash.outside import Memory, Outside
from tests.crash.word import Holder, Promise, Word

GIB = 1 << 30
NOW = 100
SLICE = Slice("renderD128/0", 1, "pool", frozenset({0, 1}), False, GIB, 1, "held")
LEASE = Lease(7, "active", 1000, "ttl", True, 200, "/x-7.slice", (SLICE,), (("hook", "verified"),))
OTHER = replace(LEASE, id=8, cgroup="/x-8.slice", slices=(replace(SLICE, cus=frozenset({2, 3})),))
KNOWN = {7: LEASE, 8: OTHER}
FREE = replace(LEASE, state="released", slices=(replace(SLICE, state="free"),))
HELD = GIB - (64 << 20)  # of a GiB, by the hook


def ledger(*leases: Lease, pool: int = 2 * GIB, slots: int = 2) -> Ledger:
    """Of *leases*, with the CUs that they hold."""
    slices = [one for lease in leases for one in lease.slices if one.state != "free"]
    held = tuple((one.device, one.epoch, cu) for one in slices for cu in one.cus)
    return Ledger({lease.id: lease for lease in leases}, {"pool": pool}, {("renderD128/0", 1): slots}, held)


def outside(*leases: int, uids: frozenset[int] = frozenset({1000})) -> Outside:
    """As an agent leaves it that holds *leases*."""
    return Outside(
        {lease: f"/x-{lease}.slice" for lease in leases},
        {lease: Limits(lease, ((HELD, 2),), "/u") for lease in leases},
        {lease: Usage("/u", 1000) for lease in leases},
        {lease: sidecar_for(KNOWN[lease]) for lease in leases},
        {"kfd": uids, "renderD128": uids},
        (),
    )


SHARED = (replace(SLICE, shared=True),)
BESIDE = replace(OTHER, slices=(replace(SLICE, cus=frozenset({1, 2})),))
WRONG = {
    "a CU of two leases": (ledger(LEASE, BESIDE), outside(7, 8), "double grant: CU 1 "),
    "more bytes than there are": (
        ledger(LEASE, OTHER, pool=GIB),
        outside(7, 8),
        "double grant: 214",
    ),
    "more queue slots than there are": (
        ledger(LEASE, OTHER, slots=1),
        outside(7, 8),
        "double grant: 2 q",
    ),
    "a CU held by nobody": (replace(ledger(LEASE), held=()), outside(7), "the CUs that are held"),
    "a cgroup of a free slice": (ledger(FREE), outside(7), "lease 7 has changes outside and its slices"),
    "a cgroup of no lease": (ledger(), outside(7), "lease 7 has changes outside and is not"),
    "a damaged database": (replace(ledger(), damage=("torn",)), outside(uids=frozenset()), "torn"),
    "a slice of no pool": (replace(ledger(LEASE), pools={}), outside(7), "double grant: 107"),
    "a slice of no device": (replace(ledger(LEASE), slots={}), outside(7), "double grant: 1 q"),
    "a lease in between": (ledger(replace(LEASE, state="releasing")), outside(7), "lease 7 is releasing"),
    "a quarantine": (ledger(replace(LEASE, state="failed")), outside(7), "lease 7 is failed"),
    "no cgroup": (ledger(LEASE), replace(outside(7), cgroups={}), "lease 7 is active without the cgroup"),
    "no limits": (ledger(LEASE), replace(outside(7), limits={}), "lease 7 is active without the hook's l"),
    "other limits": (
        ledger(LEASE),
        replace(outside(7), limits={7: Limits(7, ((GIB, 2),), "/u")}),
        "lease 7: its limits",
    ),
    "another mask": (
        ledger(LEASE),
        replace(outside(7), limits={7: Limits(7, ((HELD, 3),), "/u")}),
        "lease 7: its l",
    ),
    "limits that name another usage": (
        ledger(LEASE),
        replace(outside(7), usage={7: Usage("/v", 1000)}),
        "lease 7: its limits",
    ),
    "another's usage": (
        ledger(LEASE),
        replace(outside(7), usage={7: Usage("/u", 1001)}),
        "lease 7: its usage is for uid 1001",
    ),
    "no sidecar": (
        ledger(LEASE),
        replace(outside(7), sidecars={}),
        "lease 7 is active without the sidecar",
    ),
    "a sidecar of before": (
        ledger(replace(LEASE, deadline_ns=300)),
        outside(7),
        "lease 7: its sidecar says",
    ),
    "a sidecar of no lease": (
        ledger(),
        replace(outside(uids=frozenset()), sidecars={7: sidecar_for(LEASE)}),
        "orphan: the sidecar of lease 7",
    ),
    "a broken sidecar": (ledger(LEASE), replace(outside(7), sidecars={7: "torn"}), "torn"),
    "a frozen lease": (
        ledger(LEASE),
        replace(outside(7), frozen=frozenset({7})),
        "lease 7 is active, and its cgroup is frozen",
    ),
    "another cgroup": (ledger(LEASE), replace(outside(7), cgroups={7: "/y"}), "lease 7: its cgroup is /y"),
    "an open door": (ledger(LEASE), outside(7, uids=frozenset({1000, 1001})), "ACL: kfd lets in"),
    "a closed door": (ledger(LEASE), outside(7, uids=frozenset()), "ACL: kfd lets in []"),
    "a stray": (ledger(LEASE), replace(outside(7), strays=("/dev/shm/x",)), "/dev/shm/x"),
}


@pytest.mark.parametrize(("left", "seen", "told"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told(left: Ledger, seen: Outside, told: str) -> None:
    """Each wrong state has its own complaint."""
    assert any(each.startswith(told) for each in when_settled(left, seen))


def test_what_is_right_is_not_told() -> None:
    """Live leases with all that they need, sharers of one set, and ended leases without anything are well."""
    assert list(when_settled(ledger(LEASE, OTHER), outside(7, 8))) == []
    both = ledger(replace(LEASE, slices=SHARED), replace(OTHER, slices=SHARED))
    seen = replace(outside(7, 8), sidecars={id: sidecar_for(lease) for id, lease in both.leases.items()})
    assert list(when_settled(both, seen)) == []
    assert list(when_settled(ledger(FREE), outside(uids=frozenset()))) == []


def test_what_a_lost_ledger_has_forgotten_waits_for_the_next_agent() -> None:
    """Until one has looked, what a lost ledger need not know is no orphan, and anything else is."""
    assert list(at_any_instant(ledger(), outside(7), {7})) == []
    assert len(list(at_any_instant(ledger(), outside(7, 8), {7}))) == 1


def test_an_answer_is_kept_beside_the_ledger() -> None:
    """A lease that was answered is in its sidecar by then, as it is in the ledger."""
    assert list(when_answered(LEASE, outside(7))) == []
    assert len(list(when_answered(LEASE, outside()))) == 1


def test_a_sidecar_goes_by_the_next_start() -> None:
    """That of a lease that ended stays until the agent looks; one that starts has looked."""
    left = replace(outside(uids=frozenset()), sidecars={7: sidecar_for(LEASE)})
    assert list(when_settled(ledger(FREE), left)) == []
    assert list(when_started(ledger(LEASE), left)) == []
    assert len(list(when_started(ledger(FREE), left))) == 1


def test_in_the_moment_of_a_death_a_release_may_be_half_done() -> None:
    """Before the recovery, a lease that is on its way has some of its changes or none."""
    left = ledger(replace(LEASE, state="releasing", slices=(replace(SLICE, state="cleaning"),)))
    assert list(at_any_instant(left, outside(7))) == []
    assert list(at_any_instant(left, outside())) == []


@pytest.fixture
def holder() -> Iterator[Holder]:
    """A sleeping process."""
    made = Holder(subprocess.Popen(["sleep", "600"]), 1000)
    yield made
    made.end()


def word(holder: Holder, **changes: object) -> Word:
    """A promise of LEASE to *holder*."""
    slices = [("renderD128/0", [0, 1], GIB)]
    promise = Promise(7, "request", holder, "ttl", slices, "/x-7.slice", {200})
    for name, value in changes.items():
        setattr(promise, name, value)
    return Word({7: promise}, {}, 7)


BROKEN = {
    "a grant": ({}, ledger(), "lost: lease 7 was answered"),
    "a grant that ended by itself": ({}, ledger(FREE), "lost: lease 7 was granted, and is released"),
    "a release": ({"ended": True}, ledger(LEASE), "lost: lease 7 had ended, and is active"),
    "an overdue end": ({"deadlines": {NOW}}, ledger(LEASE), "lost: lease 7 had ended"),
    "a renewal": ({"deadlines": {300}}, ledger(LEASE), "lost: lease 7 was renewed"),
    "its slices": ({}, ledger(replace(LEASE, slices=OTHER.slices)), "lease 7 has other slices"),
    "its holder's place": ({"attached": True}, ledger(LEASE), "disturbed: process"),
    "its holder's end": ({"attached": True, "ended": True}, ledger(FREE), "lease 7 is free, and process"),
    "its own": ({}, ledger(LEASE, OTHER), "lease 8 is active, and nobody asked"),
}


@pytest.mark.parametrize(("changes", "left", "told"), BROKEN.values(), ids=BROKEN)
def test_a_broken_word_is_told(holder: Holder, changes: dict[str, object], left: Ledger, told: str) -> None:
    """Whatever was answered and does not hold any more has its own complaint."""
    assert any(each.startswith(told) for each in word(holder, **changes).check(left, Memory(), NOW))


@pytest.mark.parametrize("left", [ledger(LEASE), ledger(FREE)], ids=["still there", "gone"])
def test_a_release_without_an_answer_may_go_either_way(holder: Holder, left: Ledger) -> None:
    """Whoever asked was told nothing, so both are right, and from then on only what it was."""
    given = word(holder, may_end=True)
    assert list(given.check(left, Memory(), NOW)) == []
    assert not given.promises[7].may_end or given.promises[7].ended


def test_who_got_in_holds_an_overdue_lease(holder: Holder) -> None:
    """An attach whose agent died after the move: the ledger knows of nobody, and the lease lives on."""
    place = holder.cgroup()
    row = replace(LEASE, cgroup=place, deadline_ns=NOW, armed=False)
    entered = word(holder, anchor="cgroup", cgroup=place, attaching=True)
    assert list(entered.check(ledger(row), Memory(), NOW)) == []
    outside_it = word(holder, anchor="cgroup", attaching=True)
    (told,) = outside_it.check(ledger(replace(row, cgroup="/x-7.slice")), Memory(), NOW)
    assert told == "lost: lease 7 had ended, and is active"


def test_a_lost_ledger_may_lose_what_had_no_right_to_live_on(holder: Holder) -> None:
    """What has to live comes back; what was being ended may be gone, and what had ended is forgotten."""
    given = word(holder)
    given.ledger_lost(outside(7), NOW)
    assert [*given.check(ledger(), Memory(), NOW)] == ["lost: lease 7 was answered, and is not in the ledger"]
    given = word(holder, may_end=True)
    given.ledger_lost(outside(7), NOW)
    assert list(given.check(ledger(), Memory(), NOW)) == []
    given = word(holder, ended=True)
    given.ledger_lost(outside(), NOW)
    assert given.promises == {} and given.highest == 0


def test_a_live_holders_memory_stays(holder: Holder) -> None:
    """What a process of a live lease made is not taken from under it."""
    holder.made = True
    there = Memory(frozenset({holder.pid}), frozenset({holder.pid}))
    assert list(word(holder).check(ledger(LEASE), there, NOW)) == []
    (told,) = word(holder).check(ledger(LEASE), Memory(files=there.files), NOW)
    assert told == "disturbed: shared memory of lease 7 is gone"


def test_an_ended_holders_memory_goes_or_is_told(holder: Holder) -> None:
    """What an ended lease left is removed, or its holder is told that it stays."""
    holder.made = True
    left = Memory(files=frozenset({holder.pid}))
    (told,) = word(holder, ended=True).check(ledger(FREE), left, NOW)
    assert told == "orphan: shared memory of lease 7, and nobody is told"
    assert list(word(holder, ended=True).check(ledger(replace(FREE, told=True)), left, NOW)) == []
    assert list(word(holder, ended=True).check(ledger(FREE), Memory(), NOW)) == []


def test_cu_lists_are_read_as_they_are_spelled() -> None:
    """Spans and single members, and nothing for an empty list."""
    assert list(cus_of("0-2,8")) == [0, 1, 2, 8]
    assert list(cus_of("")) == []


def test_nothing_of_the_agents_judges_it() -> None:
    """The modules that look and judge import nothing of the agent."""
    for name in ("beside", "checker", "hooked", "ledger_copy", "outside", "word"):
        assert "nodeagent." not in (Path(__file__).parent / f"{name}.py").read_text()
