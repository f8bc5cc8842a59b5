"""Quotas as pure rules: who is counted together, of what was placed, and what would be too much."""

from __future__ import annotations

import itertools

import pytest

from nodeagent.domain.lease import HolderKind
from nodeagent.domain.placement import place
from nodeagent.domain.quota import Held, Limits, Payer, Quota, Resource, Subject, Use, breach, use_of
from nodeagent.domain.refusals import Refusal
from nodeagent.domain.request import Request, SliceRequest
from nodeagent.domain.sizes import size_of, size_text

GIB = 1 << 30
STUDENTS, STAFF = 500, 501
ALICE = Payer(1000, frozenset({STUDENTS}), HolderKind.CLIENT)
BOB = Payer(1001, frozenset({STUDENTS, STAFF}), HolderKind.PROCESS)
JOB = Payer(1000, frozenset({STUDENTS}), HolderKind.SLURM, "physics")
EVERY = (ALICE, BOB, JOB)
ONE = Use(leases=1, vram_bytes=GIB, cus=8, queue_slots=2)
WHOM = [  # a subject, and of ALICE, BOB and JOB those that it covers
    (Subject(), {0, 1, 2}),
    (Subject(user=1000), {0, 2}),
    (Subject(each=True), {0, 1, 2}),
    (Subject(each=True, but=frozenset({1001})), {0, 2}),
    (Subject(group=STUDENTS), {0, 1, 2}),
    (Subject(group=STAFF), {1}),
    (Subject(account="physics"), {2}),
    (Subject(kind=HolderKind.PROCESS), {1}),
    (Subject(user=1000, kind=HolderKind.SLURM), {2}),
    (Subject(group=STUDENTS, account="physics"), {2}),
    (Subject(user=1001, account="physics"), set()),
]


def quota(subject: Subject, **limits: int) -> Quota:
    return Quota("test", subject, Limits(**limits))


def held(*payers: Payer) -> list[Held]:
    return [Held(number, payer, ONE) for number, payer in enumerate(payers, 1)]


def placed(node, **wanted: object):
    found = place(node, (), Request(slices=(SliceRequest(**wanted),)), shared_cu_percent=25)
    assert not isinstance(found, Refusal), found
    return found


@pytest.mark.parametrize(("subject", "covered"), WHOM)
def test_a_subject_covers_whom_all_of_it_fits(subject: Subject, covered: set[int]) -> None:
    """User, group, account and holder kind must all hold where they are given."""
    assert {number for number, payer in enumerate(EVERY) if subject.covers(payer)} == covered


@pytest.mark.parametrize("resource", list(Resource))
@pytest.mark.parametrize(("subject", "covered"), WHOM)
def test_each_subject_is_held_to_each_resource(
    subject: Subject, covered: set[int], resource: Resource
) -> None:
    """Whom a quota covers gets as much as is left of it and no more; others get what they ask for."""
    most = 2 * ONE.of(resource)
    rule = quota(subject, **{resource: most})
    for number, payer in enumerate(EVERY):
        assert breach([rule], payer, ONE, held(payer)) is None
        over = breach([rule], payer, ONE, held(payer, payer))
        assert (over is not None) == (number in covered)
        if over is not None:
            assert (over.resource, over.used, over.asked, over.most) == (resource, most, most // 2, most)
            assert over.leases == (1, 2)
            assert not over.never


def test_a_group_shares_one_quota() -> None:
    """What all members hold counts together, whoever asks."""
    rule = quota(Subject(group=STUDENTS), leases=2)
    assert breach([rule], BOB, ONE, held(ALICE)) is None
    over = breach([rule], BOB, ONE, held(ALICE, ALICE))
    assert over is not None and over.leases == (1, 2)


def test_each_user_has_a_quota_of_its_own() -> None:
    """With "*" what others hold does not count, be they of the same group."""
    rule = quota(Subject(each=True, group=STUDENTS), leases=2)
    assert breach([rule], BOB, ONE, held(ALICE, ALICE, BOB)) is None
    assert breach([rule], BOB, ONE, held(ALICE, BOB, BOB)) is not None


def test_all_quotas_that_apply_must_hold() -> None:
    """A generous quota takes nothing from a strict one, in whatever order they stand."""
    strict, generous = quota(Subject(each=True), leases=1), quota(Subject(user=1000), leases=9)
    for rules in itertools.permutations([strict, generous]):
        assert breach(rules, ALICE, ONE, held(ALICE)) is not None


def test_what_can_never_fit_is_told_first() -> None:
    """Of two quotas that are exceeded the one for which waiting is in vain is told."""
    soon, never = quota(Subject(), leases=1), quota(Subject(user=1000), vram_bytes=GIB - 1)
    over = breach([soon, never], ALICE, ONE, held(BOB))
    assert over is not None and over.never
    assert over.resource is Resource.VRAM_BYTES


def test_what_is_not_asked_for_is_never_too_much() -> None:
    """Where a limit was lowered below what is held, a request that takes none of that resource passes."""
    rule = quota(Subject(), cus=4)
    assert breach([rule], ALICE, Use(1, GIB, 0, 1), held(ALICE)) is None
    assert breach([rule], ALICE, Use(1, GIB, 1, 1), held(ALICE)) is not None


def test_a_limit_of_none_forbids() -> None:
    """0 leases are no lease, ever."""
    over = breach([quota(Subject(group=STAFF), leases=0)], BOB, ONE, ())
    assert over is not None and over.never


def test_exactly_the_limit_is_allowed() -> None:
    """The last byte of a quota may be had, and the one behind it not."""
    rule = quota(Subject(), vram_bytes=2 * GIB)
    assert breach([rule], ALICE, Use(1, GIB), held(BOB)) is None
    assert breach([rule], ALICE, Use(1, GIB + 1), held(BOB)) is not None


def test_the_reason_names_quota_use_and_limit() -> None:
    """Who is refused reads which quota it was, what is held, what was asked and what is allowed."""
    over = breach(
        [Quota("group students", Subject(), Limits(vram_bytes=2 * GIB))], ALICE, ONE, held(BOB, BOB)
    )
    assert over is not None
    assert over.why == ("quota of group students, VRAM: 1.0 GiB asked, 2.0 GiB held, 2.0 GiB allowed")


@pytest.mark.parametrize(
    ("wanted", "use"),
    [
        ({}, Use(1, 63 * GIB, 304, 24)),
        ({"cu_percent": 25.0}, Use(1, 63 * GIB // 4 // (2 << 20) * (2 << 20), 64, 5)),
        ({"vram_percent": 50.0, "cus": 32}, Use(1, 63 * GIB // 2 // (2 << 20) * (2 << 20), 32, 2)),
        ({"vram_bytes": GIB, "cu_shared": True}, Use(1, GIB, 0, 1)),
        ({"count": 2, "cus": 32, "vram_bytes": GIB, "queue_slots": 3}, Use(1, 2 * GIB, 64, 6)),
    ],
)
def test_requests_count_as_what_they_were_placed_as(machines, wanted: dict[str, object], use: Use) -> None:
    """Percentages and whole devices are bytes, CUs and slots; the shared CUs are nobody's own."""
    assert use_of(placed(machines.node("mi300x-spx", 2), **wanted)) == use


def test_a_lease_without_slices_holds_nothing() -> None:
    """What is only observed counts for nobody."""
    assert use_of(()) == Use()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1024", 1024),
        ("1K", 1024),
        ("1KiB", 1024),
        ("1kB", 1000),
        ("48GiB", 48 << 30),
        ("1.5G", 3 << 29),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    """K and KiB are powers of 1024, kB of 1000, and a fraction is one of the unit."""
    assert size_of(text) == size


@pytest.mark.parametrize(
    "text", ["", "G", "-1", "1 000", "1e9", "1P", "1KB", "1 GiB ", "0x10", "\u0661", "9" * 16, "1.2345G"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    """Signs, powers, other units and other digits are no sizes."""
    with pytest.raises(ValueError, match="no size"):
        size_of(text)


def test_sizes_are_told_for_people() -> None:
    """In the unit that leaves a digit before the point."""
    assert [size_text(size) for size in (0, 1023, 1 << 20, 3 << 29)] == [
        "0 B",
        "1023 B",
        "1.0 MiB",
        "1.5 GiB",
    ]
