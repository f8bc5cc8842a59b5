"""Devices that a site keeps for some."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.domain.device import DeviceOwner
from nodeagent.domain.lease import HolderKind
from nodeagent.domain.ownership import Asker, all_of
from nodeagent.domain.placement import place
from nodeagent.domain.queue import Ground, Waiting
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.request import Request, SliceRequest
from nodeagent.domain.reserved import Reserved, party_of

ALICE, BOB, ML = 1001, 1002, 2000
KINDS = (HolderKind.PROCESS, HolderKind.CLIENT, HolderKind.DOCKER)
NUMBERS = {"alice": ALICE, "ml": ML}
OURS = Reserved.of(("user:alice", "group:ml"), NUMBERS.get, NUMBERS.get)
JOBS = Reserved.of(("kind:slurm",), NUMBERS.get, NUMBERS.get)


def ask(asker: Asker, node, **wanted):
    return place(node, (), Request((SliceRequest(cus=8, **wanted),)), asker=asker)


def code(answer) -> Code:
    assert isinstance(answer, Refusal), answer
    return answer.code


@pytest.fixture
def one(machines):
    """One card, for alice and the group ml."""
    return machines.node("mi210", reserved=OURS)


@pytest.fixture
def two(machines):
    """The first of two is theirs."""
    first, second = machines.node("mi210", 2).devices
    return machines.of([replace(first, reserved=OURS), second])


@pytest.mark.parametrize(
    ("asker", "admitted"),
    [
        (Asker(uid=ALICE), True),
        (Asker(HolderKind.CLIENT, uid=BOB, groups=frozenset({ML, 5})), True),
        (Asker(HolderKind.SLURM, uid=ALICE), True),
        (Asker(uid=BOB, groups=frozenset({5})), False),
        (Asker(HolderKind.SLURM, uid=BOB), False),
        (Asker(uid=0, administrator=True), False),
        (Asker(), False),
    ],
)
def test_only_who_is_named_gets_it(one, asker, admitted) -> None:
    """By uid or by a group, of whatever kind; root is nobody special until it names the device."""
    answer = ask(asker, one)
    assert isinstance(answer, tuple) == admitted
    if not admitted:
        assert code(answer) is Code.RESERVED_FOR_OTHERS
        assert "is reserved for user:alice, group:ml (devices.reserved)" in answer.why
        assert "another device" in answer.next_act


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_may_have_a_device_for_itself(machines, kind) -> None:
    """All jobs may, whosever they are, and nobody else."""
    node = machines.node("mi210", reserved=JOBS)
    assert isinstance(ask(Asker(HolderKind.SLURM, uid=BOB), node), tuple)
    assert code(ask(Asker(kind, uid=ALICE), node)) is Code.RESERVED_FOR_OTHERS


def test_others_look_past_it(two) -> None:
    """They get the device that is for all, and hear of that one when it is full."""
    assert ask(Asker(uid=BOB), two)[0].device == two.devices[1].key
    full = replace(two.devices[1], shares=0)
    assert code(ask(Asker(uid=BOB), replace(two, devices=(two.devices[0], full)))) is (
        Code.TIME_SLICING_EXHAUSTED
    )


def test_an_administrator_gets_it_by_naming_it(one) -> None:
    """A job does not, though root names its devices: those are its user's."""
    name = (one.devices[0].key,)
    assert isinstance(ask(Asker(uid=0, administrator=True), one, device=name), tuple)
    assert code(ask(Asker(uid=BOB), one, device=name)) is Code.RESERVED_FOR_OTHERS
    job = Asker(HolderKind.SLURM, administrator=True, uid=BOB)
    assert code(ask(job, one, device=name)) is Code.RESERVED_FOR_OTHERS


def test_slurms_devices_stay_slurms(one) -> None:
    """Whose a device is comes first: a reservation for a user makes none of Slurm's hers."""
    slurms = all_of(one, DeviceOwner.SLURM, "gres.conf names it")
    assert code(ask(Asker(uid=ALICE), slurms)) is Code.OWNED_BY_SLURM
    assert isinstance(ask(Asker(HolderKind.SLURM, uid=ALICE), slurms), tuple)
    assert code(ask(Asker(HolderKind.SLURM, uid=BOB), slurms)) is Code.RESERVED_FOR_OTHERS


def test_a_reservation_without_anybody_is_nobodys(machines) -> None:
    """An empty list, or a user that does not exist, lets nobody in."""
    gone = Reserved.of(("user:carol",), NUMBERS.get, NUMBERS.get)
    assert (gone.said, Reserved().said) == ("user:carol", "nobody")
    for nobody in (gone, Reserved()):
        assert code(ask(Asker(uid=ALICE), machines.node("mi210", reserved=nobody))) is (
            Code.RESERVED_FOR_OTHERS
        )


@pytest.mark.parametrize("text", ["alice", "user:", "role:x", "kind:pod", "", ":", "kind:"])
def test_what_names_nobody_is_wrong(text) -> None:
    """A party is a word and a name."""
    with pytest.raises(ValueError, match=r"write user:NAME|no kind of holder"):
        party_of(text)


def test_who_waits_counts_on_its_own_devices_alone(two) -> None:
    """What is kept for it, and the start that it is told, are of devices that it may have."""
    request = Request((SliceRequest(),))
    ours, theirs = (one.key for one in two.devices)

    def counts_on(owner: int, *groups: int) -> set[str]:
        waiting = Waiting(1, owner, HolderKind.CLIENT, request, 0, frozenset(groups))
        return set(Ground(two).candidates(waiting))

    assert counts_on(BOB, ML) == counts_on(ALICE) == {ours, theirs}
    assert counts_on(BOB) == {theirs}
    assert Ground(two).place(Waiting(1, BOB, HolderKind.CLIENT, request, 0), (), {ours}) is None
