"""Leases as CDI devices: who gets one, what it gives, and when it is revoked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from service_builders import House, admin, order_of, user

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.hook_files import HookFiles
from nodeagent.config import Cdi
from nodeagent.domain.container import Container, Engine
from nodeagent.domain.errors import NotAllowed
from nodeagent.domain.guarantee import Ipc, Memory, Requirement
from nodeagent.domain.lease import Lease, LeaseState
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.request import Request, SliceRequest
from nodeagent.service.cdi_users import CDI_USERS, CdiUsersEffect
from nodeagent.service.effects import Pending
from nodeagent.service.means import Setting
from nodeagent.service.memory_banks import BanksEffect, BanksMeans
from nodeagent.service.orders import Caller

pytestmark = pytest.mark.root
Build = Callable[..., House]
GIB, CONTAINER = 1 << 30, Container(Engine.DOCKER)


def asked(**demands: Any) -> Request:
    return Request((SliceRequest(cus=8, vram_bytes=GIB),), require=Requirement(**demands), cdi=True)


def edits(house: House, lease: Lease) -> dict[str, Any]:
    (device,) = json.loads(house.cdi.path(lease.id).read_bytes())["devices"]
    return dict(device["containerEdits"])


def test_a_lease_is_a_device_where_it_asks_to_be(house: House) -> None:
    """With its own nodes and environment; the ledger has no word of the name."""
    lease = house.grant(user(1000), request=asked())
    device = told(house, user(1000), lease)
    assert device is not None and device.startswith("nodeagent.local/lease=")
    inside = [node["path"] for node in edits(house, lease)["deviceNodes"]]
    found = house.agent.inventory().device(lease.slices[0].placed.device)
    assert found is not None
    assert inside == ["/dev/kfd", f"/dev/dri/{found.render_node}"]
    assert f"GPULEASE_ID={lease.id}" in edits(house, lease)["env"]
    assert device.partition("=")[2] not in str(house.ledger.effects(lease.id))
    assert house.cdi.leases() == {lease.id}
    house.grant(cus=8)
    assert house.cdi.leases() == {lease.id}


def test_only_who_may_use_a_lease_is_told_its_device(house: House) -> None:
    """Who knows the name has the slice."""
    lease = house.grant(user(1000), request=asked())
    assert told(house, user(1001), lease) is None
    assert told(house, admin(), lease) == told(house, user(1000), lease) is not None


@pytest.mark.cgroup2
def test_a_device_is_revoked_before_anybody_is_ended(build: Build, tree: CgroupTree) -> None:
    """It is the journal's last entry, so that nobody comes in while the others go."""
    house = build(tree=tree)
    lease = house.grant(request=asked())
    kinds = [one.kind for one in house.ledger.effects(lease.id)]
    assert kinds[-3:] == ["occupants", "container", "cdi"]
    assert kinds.index(CDI_USERS) < kinds.index("occupants")
    ended = house.release(lease)
    assert ended.state is LeaseState.RELEASED
    assert house.cdi.leases() == frozenset()
    assert told(house, admin(), ended) is None


def test_a_slice_is_nobody_elses_while_a_container_has_it(house: House) -> None:
    """Wherever its processes are; a reboot ended it."""
    lease = house.grant(request=asked())
    (planned,) = [one for one in house.ledger.effects(lease.id) if one.kind == CDI_USERS]
    still = Pending("process 7 runs in a container of the lease", alive=True)
    effect = CdiUsersEffect(house.clock, lambda lease_id: still if lease_id == lease.id else {})
    assert effect.undo(planned.arguments, {}) is still
    assert effect.undo({**planned.arguments, "boot_id": "another"}, {}) == CdiUsersEffect.rebooted
    plain = house.grant(cus=8)
    assert CDI_USERS not in [one.kind for one in house.ledger.effects(plain.id)]


def test_what_is_left_of_no_lease_is_revoked(house: House) -> None:
    """A lease that a ledger lost is nobody's to use."""
    lease = house.grant(request=asked())
    text = house.cdi.path(lease.id).read_bytes()
    house.release(lease)
    house.cdi.path(lease.id).write_bytes(text)
    house.look()
    assert house.cdi.leases() == frozenset()


@pytest.mark.parametrize("demands", [{"memory": Memory.SUPERVISED}, {"ipc": Ipc.PRIVATE}])
def test_what_an_engine_cannot_hold_is_refused(house: House, demands: dict[str, Any]) -> None:
    """The agent alone starts what is supervised or has private IPC."""
    refusal = house.agent.grant(admin(), order_of(request=asked(**demands)))
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.GUARANTEE_NOT_MET
    assert "is started by the agent" in refusal.why


def test_where_devices_are_turned_off_none_is_granted(build: Build) -> None:
    """A refusal that names the setting, and no lease without what it asked for."""
    house = build(config={"cdi": Cdi(enabled=False)})
    refusal = house.agent.grant(admin(), order_of(request=asked()))
    assert isinstance(refusal, Refusal)
    assert "turned off by cdi.enabled" in refusal.why


def told(house: House, caller: Caller, lease: Lease) -> str | None:
    """The device's name, as *caller* is told it."""
    view = house.agent.container(caller, lease)
    return None if view is None else view.cdi


def setting_of(house: House, lease: Lease, container: Container | None = CONTAINER) -> Setting:
    placed = tuple(held.placed for held in lease.slices)
    inventory = house.agent.inventory()
    return Setting(1000, Requirement(), None, False, placed, inventory, container=container)


def test_containers_see_banks_of_their_slices_size(house: House) -> None:
    """Copies of the node's own, to be mounted over the kernel's; again is harmless."""
    lease = house.grant(request=asked())
    (planned,) = BanksMeans(None).plan(lease.id, setting_of(house, lease))
    arguments = json.loads(json.dumps(planned.arguments))  # as the journal keeps them
    effect = BanksEffect(house.banks)
    first, again = (effect.verify(arguments, effect.apply(arguments)) for _ in range(2))
    (mount,) = first["mounts"]
    device = house.agent.inventory().device(lease.slices[0].placed.device)
    assert device is not None and first == again
    assert mount["target"] == f"/sys/devices/virtual/kfd/kfd/topology/nodes/{device.kfd_node}/mem_banks"
    assert mount["read_only"]
    copy = Path(mount["source"]) / "0/properties"
    assert f"size_in_bytes {GIB - (64 << 20)}\n" in copy.read_text()
    assert effect.undo(arguments, {}) == {"removed": True}
    assert house.banks.leases() == frozenset()


def test_banks_are_for_containers_and_may_be_off(house: House) -> None:
    """Nobody else's /sys is another; the tier says why there are none."""
    lease = house.grant(request=asked())
    assert BanksMeans(None).plan(lease.id, setting_of(house, lease, container=None)) == []
    assert BanksMeans("turned off").plan(lease.id, setting_of(house, lease)) == []
    assert BanksMeans("turned off").tier().why == "turned off"


def test_what_a_device_gives_is_what_its_lease_shows(build: Build, hook_files: HookFiles) -> None:
    """Nodes, mounts and variables are those of the lease's `container`, with the hook by its file."""
    house = build(hook=hook_files)
    lease = house.grant(user(1000), request=asked())
    view = house.agent.container(user(1000), lease)
    assert view is not None
    given = edits(house, lease)
    assert [one["hostPath"] for one in given["deviceNodes"]] == [one["host"] for one in view.devices]
    mounts = {(one["hostPath"], one["containerPath"]) for one in given["mounts"]}
    assert mounts == {(one["source"], one["target"]) for one in view.mounts}
    assert "/etc/ld.so.preload" in {inside for _, inside in mounts}
    variables = dict(one.split("=", 1) for one in given["env"])
    assert variables.keys() == view.environment.keys()
    assert all(variables[name] == value for name, value in view.environment.items() if value is not None)


def test_nothing_else_enters_a_device(house: House) -> None:
    """What runs beside containers would be given what is only in them."""
    lease = house.grant(request=asked())
    with pytest.raises(NotAllowed, match="is a container's"):
        house.agent.attach(admin(), lease.id)
