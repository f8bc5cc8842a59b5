"""Devices that Slurm gives to jobs, in a whole agent."""

from __future__ import annotations

from pathlib import Path

import pytest
from service_builders import House, admin, order_of, user

from nodeagent.adapters.slurm_conf import SlurmConf
from nodeagent.domain.device import DeviceOwner
from nodeagent.domain.lease import AnchorKind, HolderKind, LeaseState
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.service.ownership import Ownership

JOB = {"holder": (HolderKind.SLURM, "42"), "anchor": AnchorKind.EXTERNAL}


@pytest.fixture
def gres_conf(tmp_path) -> Path:
    """gres.conf with one of the node's two cards."""
    return written(tmp_path / "gres.conf", "Name=gpu File=/dev/dri/renderD128\n")


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o644)
    return path


@pytest.fixture
def house(build, gres_conf) -> House:
    """An agent on two cards, one of which gres.conf names."""
    return build(owned=Ownership(SlurmConf(gres_conf), "auto").of)


def code(house: House, caller, **wanted) -> Code:
    outcome = house.agent.grant(caller, order_of(**wanted))
    assert isinstance(outcome, Refusal), outcome
    return outcome.code


def owners(house: House) -> dict[str | None, str]:
    return {one.render_node: one.owner for one in house.agent.inventory().devices}


def test_the_device_of_gres_conf_is_slurms(house: House) -> None:
    """Users and administrators go to the other one; a job gets its own."""
    assert owners(house) == {"renderD128": "slurm", "renderD129": "any"}
    leases = [house.grant(user(), cus=8), house.grant(admin(), cus=8)]
    assert {one.slices[0].placed.device for one in leases} == {"renderD129/0"}
    job = house.grant(**JOB, device=("renderD128",))
    assert job.slices[0].placed.device == "renderD128/0"


def test_the_inventory_tells_whose_it_is(house: House) -> None:
    """The reason names the file and the number that Slurm knows the device by."""
    device = house.agent.inventory().devices[0]
    assert device.owner_reason is not None
    assert "gres.conf has it as GPU 0" in device.owner_reason


def test_nobody_waits_for_slurms_device(house: House) -> None:
    """A request that could never be granted is refused at once, an administrator's by name, too."""
    house.grant(**JOB, device=("renderD128",))
    for caller, named in ((user(), ("renderD128",)), (admin(), ("renderD128",))):
        assert code(house, caller, device=named, wait=60) is Code.OWNED_BY_SLURM


def test_a_request_waits_for_the_device_that_is_not_slurms(house: House) -> None:
    """Those who wait are served by what is theirs, and stay off Slurm's."""
    first = house.grant(user())
    second = house.grant(user(1001), wait=60)
    assert second.state is LeaseState.QUEUED
    house.look()
    assert house.state(second.id) is LeaseState.QUEUED
    house.release(first)
    house.look()
    assert house.state(second.id) is LeaseState.ACTIVE


def test_a_changed_gres_conf_counts_at_once(house: House, gres_conf: Path) -> None:
    """What the site gives to Slurm is Slurm's from the next request on; live leases go on."""
    lease = house.grant(user(), cus=8)
    written(gres_conf, "Name=gpu File=/dev/dri/renderD[128-129]\n")
    assert code(house, user(), cus=8) is Code.OWNED_BY_SLURM
    house.look()
    assert house.state(lease.id) is LeaseState.ACTIVE


@pytest.mark.parametrize(
    ("text", "why"),
    [("Name=gpu File=/dev/dri/renderD[9-1]", "gres.conf:1: File"), ("Name=gpu oops", "gres.conf:1: oops")],
)
def test_an_unreadable_gres_conf_gives_nothing_away(
    house: House, gres_conf: Path, text: str, why: str
) -> None:
    """Nobody knows then what is Slurm's: all of it is, with the line to mend in the refusal."""
    written(gres_conf, text)
    outcome = house.agent.grant(user(), order_of(cus=8))
    assert isinstance(outcome, Refusal)
    assert outcome.code is Code.OWNED_BY_SLURM
    assert why in outcome.devices[0].why
    gres_conf.unlink()
    assert code(house, user(), cus=8) is Code.OWNED_BY_SLURM


@pytest.mark.parametrize("setting", ["slurm", "local", "any"])
def test_the_sites_word_counts_more_than_the_file(build, gres_conf: Path, setting: str) -> None:
    """With an owner set, gres.conf is not asked."""
    house = build(owned=Ownership(SlurmConf(gres_conf), setting).of)
    assert set(owners(house).values()) == {DeviceOwner(setting)}


def test_a_node_without_slurm_is_everybodys(build, tmp_path) -> None:
    """No file of Slurm's: nothing changes for anybody."""
    house = build(owned=Ownership(SlurmConf(standard=(tmp_path / "etc",)), "auto").of)
    assert set(owners(house).values()) == {"any"}
    assert house.grant(user(), count=2)
