"""What holds live leases is put back where somebody spoiled it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from service_builders import House
from test_watch import events, watch_of

from nodeagent.adapters.hook_files import HookFiles
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.lease import Lease
from nodeagent.service.upkeep import TELL_SECONDS, Upkeep
from nodeagent.service.watch import Watch

pytestmark = pytest.mark.root
Build = Callable[..., House]


class Kept:
    """An agent with the hook, and its watch with the upkeep."""

    def __init__(self, house: House, files: HookFiles) -> None:
        self.house, self.files = house, files
        self.upkeep = Upkeep(house.ledger, house.clock, house.locks, house.tiers.kept)

    def watch(self) -> Watch:
        return watch_of(self.house, further=[self.upkeep])[0]

    def usage(self, lease: Lease) -> Path:
        return self.files.usage_path(lease.id)


@pytest.fixture
def kept(build: Build, hook_files: HookFiles) -> Kept:
    return Kept(build(hook=hook_files), hook_files)


def test_what_a_holder_spoils_is_put_back_and_told(kept: Kept) -> None:
    """A cut usage file has its size again after one look, and what was wrong is an event of the lease."""
    lease, watch = kept.house.grant(cus=8), kept.watch()
    watch.look()
    assert events(kept.house, "effect_restored") == []
    size = kept.usage(lease).stat().st_size
    os.truncate(kept.usage(lease), 1)
    watch.look()
    assert kept.usage(lease).stat().st_size == size
    (told,) = events(kept.house, "effect_restored")
    assert (told.lease, told.data) == (lease.id, {"effect": "hook"})
    assert f"{kept.usage(lease)}: has 1 bytes" in told.reason


def test_missing_limits_are_put_back(kept: Kept) -> None:
    """As they were: no byte more."""
    path = kept.files.limits_path(kept.house.grant(cus=8).id)
    limits = path.read_bytes()
    path.unlink()
    kept.watch().look()
    assert path.read_bytes() == limits


def test_who_spoils_again_and_again_fills_no_log(kept: Kept) -> None:
    """It is put back at every look, and told once in ten minutes."""
    lease, watch = kept.house.grant(cus=8), kept.watch()
    for _ in range(5):
        os.truncate(kept.usage(lease), 1)
        watch.look()
        assert kept.usage(lease).stat().st_size > 1
    assert len(events(kept.house, "effect_restored")) == 1
    kept.house.clock.turn(TELL_SECONDS)
    os.truncate(kept.usage(lease), 1)
    watch.look()
    assert len(events(kept.house, "effect_restored")) == 2


def test_an_ended_lease_gets_nothing_back(kept: Kept) -> None:
    """A lease that ends while it is looked at leaves no file behind."""
    lease = kept.house.grant(cus=8)
    look, usage = kept.watch()._sampler.look(), kept.usage(lease)
    assert [one.id for one in look.active] == [lease.id]
    kept.house.release(lease)
    kept.upkeep.note(look)
    assert not kept.files.limits_path(lease.id).exists()
    assert not usage.exists()


def test_what_cannot_be_put_back_keeps_no_other_from_it(kept: Kept) -> None:
    """The fault comes when all had their turn, and names the file."""
    one, other = kept.house.grant(cus=8), kept.house.grant(cus=8)
    kept.usage(one).unlink()
    kept.usage(one).mkdir()
    os.truncate(kept.usage(other), 1)
    with pytest.raises(OutsideFault, match=str(kept.usage(one))):
        kept.watch().look()
    assert kept.usage(other).stat().st_size > 1
    kept.usage(one).rmdir()
