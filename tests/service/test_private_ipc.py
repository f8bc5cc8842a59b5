"""When a lease may be stated to have shared memory of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from service_builders import House

from nodeagent.adapters.supervisor import Supervisor
from nodeagent.domain.container import Container, Engine
from nodeagent.domain.guarantee import Hold, Ipc, Memory, Requirement
from nodeagent.service.ipc_effects import IpcMeans
from nodeagent.service.means import Setting
from nodeagent.service.private_ipc import PRIVATE_IPC, PrivateIpcMeans
from nodeagent.service.supervised import SupervisedMeans

OWN = {"lease": 7, "parent": None}
JOBS = {**OWN, "name": "job_7", "also": []}


class Able(Supervisor):
    """One that this machine need not have."""

    def no_private_ipc(self) -> str | None:
        return None

    def unavailable(self) -> str | None:
        return None


def setting(house: House, cgroup: dict[str, Any] | None, demanded: Requirement) -> Setting:
    return Setting(1000, demanded, cgroup, False, (), house.survey.found())


PRIVATE = Requirement(memory=Memory.SUPERVISED, ipc=Ipc.PRIVATE)


def test_it_is_for_those_who_ask(house: House) -> None:
    """Ranks of one job may have a lease each, and meet in shared memory unless they say otherwise."""
    means = PrivateIpcMeans(Able())
    assert [one.kind for one in means.plan(7, setting(house, OWN, PRIVATE))] == [PRIVATE_IPC]
    assert means.promise(setting(house, OWN, PRIVATE)) == Hold(ipc=Ipc.PRIVATE)
    assert means.plan(7, setting(house, OWN, Requirement())) == []
    assert means.promise(setting(house, OWN, Requirement(ipc=Ipc.SHARED))) == Hold()


@pytest.mark.parametrize("cgroup", [None, JOBS], ids=["none", "the job's own"])
def test_where_others_start_the_commands_nothing_is_promised(house: House, cgroup) -> None:
    """What the agent does not start is neither supervised nor has shared memory of its own."""
    for means in (PrivateIpcMeans(Able()), SupervisedMeans(Able())):
        assert means.promise(setting(house, cgroup, PRIVATE)) == Hold()
        assert means.plan(7, setting(house, cgroup, PRIVATE)) == []


def test_what_an_engine_starts_is_not_promised(house: House) -> None:
    """A container's processes are its engine's, in the lease's cgroup or not."""
    contained = replace(setting(house, OWN, PRIVATE), container=Container(Engine.DOCKER))
    for means in (PrivateIpcMeans(Able()), SupervisedMeans(Able())):
        assert means.promise(contained) == Hold()
        assert means.plan(7, contained) == []


def test_nothing_of_the_nodes_is_such_a_leases(house: House) -> None:
    """Its release removes nothing from the node's shared memory, where it can have left nothing."""
    assert IpcMeans().plan(7, setting(house, OWN, PRIVATE)) == []
    assert IpcMeans().plan(7, setting(house, OWN, Requirement())) != []
