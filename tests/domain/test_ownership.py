"""Whose devices are, and who else gets them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.domain.device import DeviceOwner, DeviceState
from nodeagent.domain.gres import parse
from nodeagent.domain.lease import HolderKind
from nodeagent.domain.ownership import Asker, all_of, given_to
from nodeagent.domain.placement import place
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.request import Request, SliceRequest
from nodeagent.domain.slurm_lines import line, logical

OTHERS = [kind for kind in HolderKind if kind is not HolderKind.SLURM]


def ask(asker: Asker, node, held=(), **wanted):
    return place(node, held, Request((SliceRequest(**wanted),)), asker=asker)


def code(answer) -> Code:
    assert isinstance(answer, Refusal), answer
    return answer.code


def slurms(node, *minors: int):
    """*node* with the devices of these render minors in gres.conf."""
    text = "\n".join(f"Name=gpu File=/dev/dri/renderD{minor}" for minor in minors)
    lines = [line(f"gres.conf:{number}", content) for number, content in logical(text)]
    return given_to(node, parse(lines, "n1"), "/etc/slurm/gres.conf")


@pytest.fixture
def node(machines):
    """Three cards, renderD128, 136 and 144."""
    return machines.node("mi210", 3)


@pytest.mark.parametrize("kind", OTHERS)
def test_placement_looks_past_what_is_slurms(node, kind) -> None:
    """Whoever is no job gets the device that gres.conf does not name, whatever the others have free."""
    mixed = slurms(node, 144, 128)
    (placed,) = ask(Asker(kind), mixed, cus=8)
    assert placed.device == node.devices[1].key


@pytest.mark.parametrize("kind", OTHERS)
def test_when_all_is_slurms_the_refusal_says_so(node, kind) -> None:
    """The code is DeviceOwnedBySlurm; file, number and what to do are in words."""
    answer = ask(Asker(kind), slurms(node, 144, 136, 128), cus=8)
    assert code(answer) is Code.OWNED_BY_SLURM
    assert "/etc/slurm/gres.conf has it as GPU 2" in answer.devices[0].why
    assert "srun --gres" in answer.next_act
    assert "devices.owner" in answer.next_act


def test_a_job_gets_what_is_slurms(node) -> None:
    """Slurm's own holders are not kept from Slurm's devices, nor from others."""
    assert len(ask(Asker(HolderKind.SLURM), slurms(node, 128), count=3)) == 3


def test_a_busy_device_counts_more_than_those_of_others(node) -> None:
    """One device is worth waiting for: the refusal names what holds it, not the two that are never given."""
    mixed = slurms(node, 128, 136)
    busy = replace(
        mixed,
        devices=tuple(
            replace(one, state=DeviceState.DRAINING) if one.owner is DeviceOwner.ANY else one
            for one in mixed.devices
        ),
    )
    assert code(ask(Asker(), busy, cus=8)) is Code.CARD_CORDONED


def test_a_filter_that_leaves_all_out_is_named_as_such(node) -> None:
    """Who asks for a type that is not here is told that, not whose the others are."""
    assert code(ask(Asker(), slurms(node, 128, 136, 144), type=("MI300X",))) is Code.CARD_TYPE_MISMATCH


def test_a_sick_device_of_slurms_is_slurms_first(node) -> None:
    """Nobody is sent to mend a device that would not be given anyway."""
    owned = slurms(node, 128, 136, 144)
    sick = replace(owned, devices=tuple(replace(one, state=DeviceState.UNHEALTHY) for one in owned.devices))
    assert code(ask(Asker(), sick, cus=8)) is Code.OWNED_BY_SLURM


def test_an_administrator_takes_slurms_device_by_name_only(node) -> None:
    """Naming it is the deed; asking for any device is not, and a user's naming changes nothing."""
    owned = slurms(node, 128, 136, 144)
    name = ("renderD136",)
    (placed,) = ask(Asker(administrator=True), owned, cus=8, device=name)
    assert placed.device == node.devices[1].key
    assert code(ask(Asker(administrator=True), owned, cus=8)) is Code.OWNED_BY_SLURM
    assert code(ask(Asker(administrator=True), owned, cus=8, device=(" ",))) is Code.OWNED_BY_SLURM
    assert code(ask(Asker(), owned, cus=8, device=name)) is Code.OWNED_BY_SLURM


def test_a_local_device_is_kept_from_jobs(node) -> None:
    """The site's word goes both ways: a job is refused, and told what to mend."""
    local = all_of(node, DeviceOwner.LOCAL, "devices.owner is local")
    answer = ask(Asker(HolderKind.SLURM, administrator=True), local, cus=8, device=("renderD128",))
    assert code(answer) is Code.OWNED_LOCALLY
    assert ask(Asker(), local, cus=8)
