"""Routes of leases: statuses, headers, filters, masking, waiting."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from nodeagent.domain.container import Container, Engine
from nodeagent.domain.errors import (
    InvalidField,
    KeyReused,
    LedgerUnavailable,
    NotAllowed,
    OutsideFault,
    StaleLease,
    TooMany,
)
from nodeagent.domain.idle import Idle
from nodeagent.domain.lease import Anchor, AnchorKind, HolderKind, LeaseState
from nodeagent.service.container_view import ContainerView
from nodeagent.service.effects import Told
from nodeagent.service.queue import Standing

SECOND_NS = 1_000_000_000


def test_a_fresh_grant_is_201_and_says_where(user):
    """A new lease comes with its place, its limits and its environment."""
    answer = user.post("/v1/leases", json={"slices": [{"cus": 64}]})
    assert answer.status_code == 201
    assert answer.headers["Location"] == f"/v1/leases/{answer.json['id']}"
    assert answer.json["slices"][0]["cus"] == "0-63"
    assert answer.json["environment"]["HIP_VISIBLE_DEVICES"] is None
    assert answer.json["expires_at"] == "2027-01-15T08:15:00.000Z"


@pytest.mark.parametrize(
    ("anchor", "ends"),
    [
        (Anchor(AnchorKind.CGROUP, armed=True, ttl_seconds=900, deadline_ns=1_900 * SECOND_NS), True),
        (Anchor(AnchorKind.EXTERNAL, armed=True, ttl_seconds=900, deadline_ns=1_900 * SECOND_NS), True),
        (Anchor(AnchorKind.CGROUP, armed=False, ttl_seconds=900, deadline_ns=1_060 * SECOND_NS), False),
        (Anchor(AnchorKind.PROCESS, armed=True), False),
    ],
)
def test_a_lease_says_when_its_time_is_up_whatever_its_anchor(user, agent, anchor, ends):
    """A ttl ends a job's or a run's lease too; the deadline for a holder to appear is not the lease's end."""
    shown = user.get(f"/v1/leases/{agent.add(1000, anchor=anchor).id}").json
    assert shown["expires_at"] == ("2027-01-15T08:15:00.000Z" if ends else None)


def test_the_same_request_again_is_200(user):
    """A repeated request id is answered with the first lease."""
    first = user.post("/v1/leases", json={"request_id": "a"})
    again = user.post("/v1/leases", json={"request_id": "a"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json == again.json


def test_a_queued_request_is_202(user, agent):
    """Who waits gets the lease's id to follow."""
    agent.queues = True
    answer = user.post("/v1/leases", json={"wait_seconds": 60})
    assert (answer.status_code, answer.json["state"]) == (202, "queued")
    assert answer.headers["Location"].endswith(str(answer.json["id"]))


def test_one_who_waits_sees_its_place(user, agent):
    """Position, earliest start and end of the wait, in lists too; a granted lease has none."""
    agent.queues = True
    lease = user.post("/v1/leases", json={"wait_seconds": 60}).json
    assert lease["queue"]["position"] is None, "the queue was not looked at since"
    agent.standings[lease["id"]] = Standing(2, 1_900 * SECOND_NS)
    shown = user.get(f"/v1/leases/{lease['id']}").json
    assert shown["queue"]["position"] == 2
    assert shown["queue"]["earliest_at"] == "2027-01-15T08:15:00.000Z"
    (listed,) = user.get("/v1/leases?state=queued").json["leases"]
    assert listed["queue"] == shown["queue"]
    agent.standings[lease["id"]] = Standing(1, 0)
    assert user.get(f"/v1/leases/{lease['id']}").json["queue"]["earliest_at"] == "2027-01-15T08:00:00.000Z"
    assert user.get(f"/v1/leases/{agent.add(1000).id}").json["queue"] is None


def test_an_idle_lease_says_since_when(user, client_of, agent):
    """And when it ends by that, in lists too; to others it is not told."""
    lease = agent.add(1000)
    assert user.get(f"/v1/leases/{lease.id}").json["idle"] is None
    agent.resting[lease.id] = Idle(1_000 * SECOND_NS, 1_900 * SECOND_NS)
    shown = user.get(f"/v1/leases/{lease.id}").json["idle"]
    assert shown == {"since": "2027-01-15T08:00:00.000Z", "ends_at": "2027-01-15T08:15:00.000Z"}
    (listed,) = user.get("/v1/leases").json["leases"]
    assert listed["idle"] == shown
    assert client_of(1001).get(f"/v1/leases/{lease.id}").json["idle"] is None
    agent.resting[lease.id] = Idle(1_000 * SECOND_NS, None)
    assert user.get(f"/v1/leases/{lease.id}").json["idle"]["ends_at"] is None


def test_a_refusal_is_409_with_everything_to_act_on(user, agent, refusal):
    """The code, the reason per device, ids of blockers, the earliest end and the next act are served."""
    agent.outcome = refusal
    answer = user.post("/v1/leases", json={})
    assert answer.status_code == 409
    assert answer.content_type == "application/problem+json"
    assert answer.json == {
        "type": "urn:nodeagent:refusal:CardInsufficientCore",
        "title": "The request does not fit now",
        "status": 409,
        "code": "CardInsufficientCore",
        "detail": "no device has 64 free CUs",
        "blockers": [1001, 1002],
        "devices": [
            {
                "device": "0000:c1:00.0/0",
                "code": "CardInsufficientCore",
                "why": "0 of 64 CUs are free",
                "blockers": [1001, 1002],
                "earliest_at": "2027-01-15T08:16:40.000Z",
            },
            {
                "device": "0000:c2:00.0/0",
                "code": "CardCordoned",
                "why": "draining",
                "blockers": [],
                "earliest_at": None,
            },
        ],
        "earliest_at": "2027-01-15T08:16:40.000Z",
        "next": "ask for less, or wait",
    }


@pytest.mark.parametrize(
    ("fault", "status", "code", "retry"),
    [
        (NotAllowed("no"), 403, "NotAllowed", None),
        (StaleLease("ended"), 410, "StaleLease", None),
        (KeyReused("again"), 422, "KeyReused", None),
        (InvalidField("anchor.pid", "there is no such process"), 422, "InvalidField", None),
        (TooMany("5 grants a second", 0.2), 429, "TooMany", "1"),
        (TooMany("5 grants a second", 2.5), 429, "TooMany", "3"),
        (LedgerUnavailable("disk full"), 503, "LedgerUnavailable", "5"),
        (OutsideFault("/sys/x", "EIO"), 503, "OutsideFault", "5"),
        (RuntimeError("secret"), 500, "InternalError", None),
    ],
)
def test_faults_have_their_status(user, agent, fault, status, code, retry):
    """Every fault of the service is a problem document of its own code, and a bug tells nothing of itself."""
    agent.fault = fault
    answer = user.post("/v1/leases", json={})
    assert (answer.status_code, answer.json["code"]) == (status, code)
    assert answer.headers.get("Retry-After") == retry
    assert answer.content_type == "application/problem+json"
    assert "secret" not in answer.text


def test_others_see_devices_sizes_and_end_only(client_of, agent):
    """Another user's lease shows no name, uid, environment, cgroup, CU set, reason or request id."""
    lease = agent.add(1000)
    masked = client_of(1001).get(f"/v1/leases/{lease.id}").json
    assert masked["masked"] is True
    assert masked["holder"] == {"kind": "client", "id": None, "uid": None}
    slice_ = masked["slices"][0]
    assert {name for name, value in slice_.items() if value is not None} == {
        "device",
        "cu_count",
        "vram_bytes",
        "queue_slots",
        "state",
    }
    shown = {name for name, value in masked.items() if value is not None}
    assert shown == {"id", "state", "masked", "holder", "slices", "expires_at"}
    text = json.dumps(client_of(1001).get("/v1/leases").json)
    assert not any(word in text for word in ("trainer", "1000", "ROCR", "gpulease.slice", "for the test"))


def test_what_its_programs_tell_is_shown_to_those_who_see_it(client_of, agent):
    """The hook's own count comes with one lease, clipped to what JSON holds; not in lists, nor to others."""
    lease = agent.add(1000)
    agent.says = Told((1 << 30,), 1 << 63)
    shown = client_of(1000).get(f"/v1/leases/{lease.id}").json
    assert (shown["slices"][0]["told_bytes"], shown["denied"]) == (1 << 30, (1 << 53) - 1)
    for unheard in (
        client_of(1001).get(f"/v1/leases/{lease.id}").json,
        client_of(1000).get("/v1/leases").json["leases"][0],
    ):
        assert (unheard["slices"][0]["told_bytes"], unheard["denied"]) == (None, None)


def test_owners_administrators_and_open_nodes_see_all(client_of, agent, open_app):
    """Masking ends for the holder's uid, for administrators, and where the site says so."""
    lease = agent.add(1000)
    for client in (client_of(1000), client_of(0), client_of(1001, application=open_app)):
        assert client.get(f"/v1/leases/{lease.id}").json["holder"]["id"] == "trainer"


def test_a_containers_root_sees_nothing_of_the_hosts_root(client_of, agent):
    """uid 0 that is no administrator owns no lease by its number."""
    lease = agent.add(0)
    assert client_of(0, administrator=False).get(f"/v1/leases/{lease.id}").json["masked"] is True


@pytest.mark.parametrize("query", ["user=1000", "user=0"])
def test_filters_do_not_tell_whose_a_lease_is(client_of, agent, query):
    """Another uid's leases cannot be listed by uid."""
    agent.add(1000)
    answer = client_of(1001).get(f"/v1/leases?{query}")
    assert (answer.status_code, answer.json["code"]) == (403, "NotAllowed")


def test_the_holder_filter_finds_ones_own(client_of, agent):
    """A holder's name of another user finds nothing, so it cannot be guessed."""
    agent.add(1000)
    assert client_of(1001).get("/v1/leases?holder=client:trainer").json["leases"] == []
    assert client_of(1000).get("/v1/leases?holder=client:trainer").json["leases"] != []
    assert client_of(0).get("/v1/leases?holder=client:trainer&user=1000").json["leases"] != []


@pytest.mark.parametrize("query", ["since=2000-01-01T00:00:00Z", "holder=client:trainer"])
def test_what_is_hidden_is_asked_of_ones_own_alone(client_of, agent, query):
    """When another's lease began is not found out by trying times, as who holds it is not by names."""
    agent.add(1000)
    client_of(1001).get(f"/v1/leases?{query}")
    assert agent.calls[-1][1]["uid"] == 1001
    client_of(0).get(f"/v1/leases?{query}")
    assert agent.calls[-1][1]["uid"] is None


def test_filters_reach_the_agent_as_types(root, agent):
    """States, holder, time and cursor arrive as the service knows them."""
    assert root.get(
        "/v1/leases?state=active,queued&user=7&device=0000:c1:00.0/0&holder=slurm:17"
        "&since=2027-01-15T08:00:00Z&ended_since=2027-01-15T08:00:01Z&after=5&limit=2"
    ).json == {"leases": [], "next": None}
    assert agent.calls[-1] == (
        "leases",
        {
            "state": frozenset({LeaseState.ACTIVE, LeaseState.QUEUED}),
            "uid": 7,
            "device": "0000:c1:00.0/0",
            "holder": (HolderKind.SLURM, "17"),
            "since": 1_800_000_000.0,
            "ended_since": 1_800_000_001.0,
            "after": 5,
            "limit": 2,
        },
    )


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=1&limit=2", "limit"),
        ("after=-1", "after"),
        ("after=1e3", "after"),
        ("after=\u0661", "after"),
        ("state=running", "state"),
        ("state=", "state"),
        ("user=root", "user"),
        ("holder=slurm", "holder"),
        ("holder=root:1", "holder"),
        ("since=yesterday", "since"),
        ("since=2027-13-01T00:00:00Z", "since"),
        ("since=2027-01-01T00:00:00", "since"),
        ("nonsense=1", "nonsense"),
        ("%1b[31m=1", "\\x1b[31m"),
    ],
)
def test_wrong_query_parameters_are_named(user, query, field):
    """A wrong, repeated or unknown query parameter is a 422 with its name."""
    answer = user.get(f"/v1/leases?{query}")
    assert (answer.status_code, answer.json["field"]) == (422, field)


@pytest.mark.parametrize("wrong", ["0", "-1", "x", "1.0", "\u0661", "9" * 5000, "9007199254740992"])
def test_wrong_ids_are_named(user, wrong):
    """An id that can be no lease's is a 422, not a search."""
    answer = user.get(f"/v1/leases/{wrong}")
    assert (answer.status_code, answer.json["field"]) == (422, "id")


def test_pages_follow_the_cursor(user, agent):
    """A full page names its last id as the next cursor; the last page names none."""
    ids = [agent.add(1000).id for _ in range(3)]
    first = user.get("/v1/leases?limit=2").json
    second = user.get(f"/v1/leases?limit=2&after={first['next']}").json
    assert [lease["id"] for lease in first["leases"] + second["leases"]] == ids
    assert (first["next"], second["next"]) == (ids[1], None)


def test_release_says_whether_it_is_done(user, agent):
    """200 with the ended lease, 202 while it is cleaned, 204 for one that never was."""
    lease = agent.add(1000)
    assert user.delete(f"/v1/leases/{lease.id}").status_code == 202
    done = user.delete(f"/v1/leases/{lease.id}?wait=5")
    assert (done.status_code, done.json["state"]) == (200, "released")
    assert agent.calls[-1] == ("release", 5)
    never = user.delete("/v1/leases/77777")
    assert (never.status_code, never.data) == (204, b"")


def test_a_failed_release_is_an_ended_lease(user, agent):
    """FAILED, with a slice in quarantine, is an end too: the caller has nothing more to wait for."""
    lease = agent.add(1000)
    agent.release = lambda caller, lease_id, seconds: replace(lease, state=LeaseState.FAILED)
    answer = user.delete(f"/v1/leases/{lease.id}")
    assert (answer.status_code, answer.json["state"]) == (200, "failed")


@pytest.mark.parametrize(
    ("method", "suffix"), [("DELETE", ""), ("POST", "/attach"), ("POST", "/renew"), ("POST", "/clear")]
)
def test_others_leases_are_not_acted_on(client_of, agent, method, suffix):
    """Release, attach, renew and clear of another's lease are 403."""
    lease = agent.add(1000)
    answer = client_of(1001).open(f"/v1/leases/{lease.id}{suffix}", method=method)
    assert (answer.status_code, answer.json["code"]) == (403, "NotAllowed")


@pytest.mark.parametrize("suffix", ["/attach", "/renew", "/clear"])
def test_acts_on_unknown_leases_are_404(root, suffix):
    """There is no success in acting on what never was, other than ending it."""
    assert root.post(f"/v1/leases/5{suffix}").status_code == 404


def test_what_a_lease_leaves_is_shown_to_administrators(user, root, agent):
    """Names in /dev/shm are users' text: root reads what would go and why, nobody else."""
    lease = agent.add(1000)
    assert user.get(f"/v1/leases/{lease.id}/ipc").status_code == 403
    shown = root.get(f"/v1/leases/{lease.id}/ipc")
    assert (shown.status_code, shown.json["lease"], shown.json["ended"]) == (200, lease.id, False)
    assert shown.json["objects"][0]["goes"] is True
    assert root.get("/v1/leases/77/ipc").status_code == 404


def test_clear_is_for_administrators(user, root, agent):
    """Not even the holder clears a quarantine."""
    lease = agent.add(1000)
    assert user.post(f"/v1/leases/{lease.id}/clear").status_code == 403
    assert root.post(f"/v1/leases/{lease.id}/clear").status_code == 200


def test_renew_takes_a_new_ttl(user, agent):
    """The ttl is handed on; none means the lease's own."""
    lease = agent.add(1000)
    user.post(f"/v1/leases/{lease.id}/renew", json={"ttl_seconds": 60})
    user.post(f"/v1/leases/{lease.id}/renew")
    assert [call for call in agent.calls if call[0] == "renew"] == [("renew", 60), ("renew", None)]


def test_waiting_without_a_seat_is_answered_at_once(user, agent, waiting, caller_of):
    """The third wait of a uid holds no thread: it is answered now, and told when to come back."""
    lease = agent.add(1000)
    assert "Retry-After" not in user.get(f"/v1/leases/{lease.id}?wait=5").headers
    with waiting.seat(caller_of(1000)), waiting.seat(caller_of(1000)):
        agent.calls.clear()
        answer = user.get(f"/v1/leases/{lease.id}?wait=5")
        assert (answer.status_code, answer.headers["Retry-After"]) == (200, "1")
        released = user.delete(f"/v1/leases/{lease.id}?wait=5")
        assert (released.status_code, released.headers["Retry-After"]) == (202, "1")
        events = user.get("/v1/events?wait=5")
        assert (events.status_code, events.headers["Retry-After"]) == (200, "1")
        assert ("wait", 5) not in agent.calls


def test_a_leases_device_is_shown_where_it_may_be_used(user, agent):
    """In the answer to the request, and to a look at the one lease; lists have no names of devices."""
    agent.view = ContainerView(None, None, None, (), (), (), {}, {}, 10, cdi="nodeagent.local/lease=1")
    made = user.post("/v1/leases", json={"cdi": True}).json
    assert made["container"]["cdi"] == "nodeagent.local/lease=1"
    assert user.get(f"/v1/leases/{made['id']}").json["container"]["cdi"] == made["container"]["cdi"]
    assert user.get("/v1/leases").json["leases"][0]["container"] is None
    assert user.post("/v1/leases", json={}).json["container"] is None


def test_a_ticket_is_told_to_the_request_alone(user, agent):
    """The answer to a container's request has its ticket, that to the same request again, and no other."""
    agent.view = ContainerView(Engine.DOCKER, None, "gpulease-1.slice", (), (44,), (), {}, {}, 10)
    body = {"request_id": "web", "anchor": {"kind": "container", "engine": "docker"}}
    made = user.post("/v1/leases", json=body).json
    agent.known[made["id"]] = replace(
        agent.known[made["id"]], anchor=Anchor(AnchorKind.CONTAINER, container=Container(Engine.DOCKER))
    )
    first, again = (user.post("/v1/leases", json=body).json["container"] for _ in range(2))
    shown = user.get(f"/v1/leases/{made['id']}").json["container"]
    released = user.delete(f"/v1/leases/{made['id']}").json["container"]
    assert first == again and first["labels"]["gpulease.ticket"]
    for told in (shown, released):
        assert told["labels"] == {"gpulease.lease": str(made["id"])}
