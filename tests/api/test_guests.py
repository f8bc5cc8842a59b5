"""Routes of containers in leases that were not taken for them."""

from __future__ import annotations

import pytest

from nodeagent.domain.container import Container, Engine
from nodeagent.domain.errors import InLease, StaleLease, UnknownThing
from nodeagent.domain.guarantee import Memory, Requirement
from nodeagent.domain.records import EffectRecord, EffectState
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.service.container_view import ContainerView
from nodeagent.service.guest_records import GUEST, Guest
from nodeagent.service.hosting import GuestOrder

VIEW = ContainerView(
    engine=Engine.DOCKER,
    id=None,
    cgroup_parent="/gpulease.slice/gpulease-7.slice",
    devices=[{"host": "/dev/kfd", "inside": "/dev/kfd"}],
    groups=[44],
    mounts=[],
    environment={"HSA_CU_MASK": "0:0-7"},
    labels={"gpulease.ticket": "f" * 32},
    stop_timeout_seconds=10,
)
ANCHOR = {"kind": "container", "engine": "docker", "libc": "musl"}


def test_a_container_is_let_in(user, agent):
    """With its number, its own guarantee, and what it is to be started with."""
    made = user.post("/v1/leases", json={}).json
    agent.view = VIEW
    body = {"anchor": ANCHOR, "require": {"memory": "hook"}, "request_id": "x"}
    answer = user.post(f"/v1/leases/{made['id']}/containers", json=body)
    assert (answer.status_code, answer.json["lease"], answer.json["id"]) == (201, made["id"], 3)
    assert answer.json["guarantee"] == made["guarantee"]
    assert answer.json["container"]["labels"] == {"gpulease.ticket": "f" * 32}
    order = GuestOrder(Container(Engine.DOCKER, "musl"), Requirement(memory=Memory.HOOK), "x")
    assert agent.calls == [("host", order)]


@pytest.mark.parametrize(
    "body",
    [{}, {"anchor": {"kind": "ttl"}}, {"anchor": ANCHOR, "slices": []}, {"anchor": {"kind": "container"}}],
)
def test_what_is_no_container_is_refused(user, body):
    """Its anchor is a container's, and there is nothing to be had of a slice."""
    assert user.post("/v1/leases/1/containers", json=body).status_code == 422


def test_a_floor_that_cannot_be_held_is_a_refusal(user, agent):
    """As of a lease."""
    agent.outcome = Refusal(Code.GUARANTEE_NOT_MET, "why", "next")
    answer = user.post("/v1/leases/1/containers", json={"anchor": ANCHOR})
    assert (answer.status_code, answer.json["code"]) == (409, "GuaranteeNotMet")


def test_who_is_in_a_lease_is_told_which(user, agent):
    """A problem of its own code, with the lease to ask for."""
    agent.fault = InLease(7, "this process is in lease 7")
    answer = user.post("/v1/leases", json={"anchor": ANCHOR})
    assert (answer.status_code, answer.json["code"], answer.json["lease"]) == (403, "InLease", 7)


@pytest.mark.parametrize("fault", [None, UnknownThing("gone"), StaleLease("ended")])
def test_giving_back_is_success_also_of_what_is_gone(user, agent, monkeypatch, fault):
    """Whoever repeats it is told the same."""
    made = user.post("/v1/leases", json={}).json

    def gone(*_):
        raise fault

    if fault is not None:
        monkeypatch.setattr(agent, "give_back_guest", gone)
    assert user.delete(f"/v1/leases/{made['id']}/containers/3").status_code == 204


def test_who_is_inside_is_listed(user, agent):
    """For the holder: number, engine, the engine's id, state and why it ends."""
    made = user.post("/v1/leases", json={}).json
    entry = EffectRecord(1, made["id"], GUEST, {}, EffectState.VERIFIED, None, 0)
    held = Container(Engine.DOCKER, "musl", id="c0ffee")
    agent.inside = [Guest(made["id"], 3, held, None, 0, True, "given back", None, None, entry)]
    answer = user.get(f"/v1/leases/{made['id']}/containers")
    told = {"id": 3, "engine": "docker", "container": "c0ffee", "state": "ending", "reason": "given back"}
    assert (answer.status_code, answer.json) == (200, {"containers": [told]})
