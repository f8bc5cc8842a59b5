"""What an order says of holder and anchor, and who may say it."""

from __future__ import annotations

import pytest

from nodeagent.domain.lease import AnchorKind, HolderKind


def order(client, agent, body, status=201):
    answer = client.post("/v1/leases", json=body)
    assert answer.status_code == status, answer.text
    return agent.orders[-1][1]


@pytest.mark.parametrize(
    ("body", "holder", "anchor"),
    [
        ({}, ("client", "1000"), "ttl"),
        ({"request_id": "a1"}, ("client", "a1"), "ttl"),
        ({"ttl_seconds": 60}, ("client", "1000"), "ttl"),
        ({"anchor": {"kind": "ttl"}}, ("client", "1000"), "ttl"),
        ({"anchor": {"kind": "process"}}, ("process", "4242"), "process"),
        ({"anchor": {"kind": "cgroup"}}, ("process", "4242"), "cgroup"),
        ({"anchor": {"kind": "process", "pid": 77}}, ("process", "77"), "process"),
        ({"holder": {"kind": "process"}}, ("process", "4242"), "process"),
        ({"holder": {"kind": "process", "id": "4242"}}, ("process", "4242"), "process"),
        ({"holder": {"kind": "client", "id": "x"}, "anchor": {"kind": "cgroup"}}, ("client", "x"), "cgroup"),
    ],
)
def test_defaults_follow_from_what_is_given(user, agent, body, holder, anchor):
    """A holder that is not named is the calling process, or a client name, by the anchor."""
    found = order(user, agent, body)
    assert (found.holder_kind, found.holder_id) == (HolderKind(holder[0]), holder[1])
    assert found.anchor.kind is AnchorKind(anchor)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"holder": {"kind": "slurm", "id": "17"}}, "holder.kind slurm: only an administrator"),
        ({"holder": {"kind": "docker", "id": "abc"}}, "holder.kind docker: only an administrator"),
        ({"anchor": {"kind": "external"}}, "anchor.kind external: only an administrator"),
        ({"holder": {"kind": "process", "id": "1"}}, "holder.id: a process holds only for itself"),
        ({"holder": {"kind": "process", "id": "4243"}}, "holder.id: a process holds only for itself"),
    ],
)
def test_users_hold_only_for_themselves(user, agent, body, why):
    """Job and container holders and endless leases are for administrators; a pid is one's own."""
    answer = user.post("/v1/leases", json=body)
    assert (answer.status_code, answer.json["code"]) == (403, "NotAllowed")
    assert answer.json["detail"].startswith(why)
    assert agent.orders == []


def test_administrators_name_no_process_but_the_one_that_is_held_for(root, agent):
    """A process holder is the caller or the adopted process, also when root asks."""
    body = {"holder": {"kind": "process", "id": "77"}}
    assert root.post("/v1/leases", json=body).status_code == 403
    found = order(root, agent, body | {"anchor": {"kind": "process", "pid": 77}})
    assert (found.holder_kind, found.holder_id) == (HolderKind.PROCESS, "77")


def test_root_of_a_container_is_no_administrator(client_of, agent):
    """uid 0 alone is not enough to hold for a job: identification says who administers."""
    client = client_of(0, administrator=False)
    assert client.post("/v1/leases", json={"holder": {"kind": "slurm", "id": "17"}}).status_code == 403


def test_administrators_hold_for_jobs(root, agent):
    """A prolog's order ends by a call or a reboot unless it says otherwise."""
    found = order(root, agent, {"holder": {"kind": "slurm", "id": "17"}})
    assert (found.holder_kind, found.holder_id, found.anchor.kind) == (
        HolderKind.SLURM,
        "17",
        AnchorKind.EXTERNAL,
    )
    assert order(root, agent, {"holder": {"kind": "slurm", "id": "s5K1KKYAYG5D00"}}).holder_id[0] == "s"


def test_a_partition_is_asked_for_whole(client_of, agent):
    """partition goes with no size; without it the request is what it was before there was any."""
    client = client_of(1000)
    plain = order(client, agent, {"slices": [{"partition": False}]})
    assert plain.digest == order(client, agent, {}).digest
    asked = order(client, agent, {"slices": [{"partition": True, "cu_shared": False, "count": 2}]})
    assert asked.request.slices[0].partition
    assert asked.digest != plain.digest
    for size in ({"cus": 8}, {"cu_percent": 5}, {"cu_shared": True}, {"vram_bytes": 1}, {"vram_percent": 5}):
        answer = client.post("/v1/leases", json={"slices": [{"partition": True, **size}]})
        assert (answer.status_code, "exclude each other" in answer.json["detail"]) == (422, True)


def test_the_digest_is_of_what_is_asked_for(client_of, agent):
    """Field order, spelled-out defaults, another process and another waiting time are the same request."""
    one, other = client_of(1000, pid=50), client_of(1000, pid=51)
    same = [
        order(one, agent, {"numa_bind": True, "slices": [{"cus": 8}]}).digest,
        order(other, agent, {"slices": [{"cus": 8, "shape": "even"}], "numa_bind": True}).digest,
        order(one, agent, {"slices": [{"cus": 8.0}], "numa_bind": True, "wait_seconds": 0}).digest,
    ]
    agent.queues = True
    same.append(order(one, agent, {"slices": [{"cus": 8}], "numa_bind": True, "wait_seconds": 9}, 202).digest)
    assert len(set(same)) == 1
    assert order(one, agent, {"slices": [{"cus": 9}], "numa_bind": True}, 202).digest not in same


def test_a_device_that_is_not_asked_for_is_no_part_of_the_request(user, agent):
    """So that a request of a client from before there were any is still the same one."""
    plain, none, device = ({}, {"cdi": False}, {"cdi": True})
    digests = [order(user, agent, body).digest for body in (plain, none, device)]
    assert digests[0] == digests[1] != digests[2]
    low, normal = (order(user, agent, {"queue_priority": one}).digest for one in ("low", "normal"))
    assert normal == digests[0] != low
    assert digests[0] == "04b7ff99370d7d25385d959c241b88bd48457ee72644bace0b3c6c2b3365341d"
