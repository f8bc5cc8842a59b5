"""The library: typed results, and an error for each answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gpulease
from gpulease import Client, errors
from gpulease.errors import error_from
from gpulease.ids import lease_id, lease_ids


@pytest.fixture
def client(agent: Any) -> Client:
    return Client(agent.path, timeout=5)


def test_public_names() -> None:
    """The package exports what it says, and nothing else."""
    assert sorted(gpulease.__all__) == gpulease.__all__
    assert all(hasattr(gpulease, name) for name in gpulease.__all__)


def test_devices(client: Client) -> None:
    """Devices come typed, 64-bit ids from their strings."""
    (device,) = client.devices()
    assert (device.key, device.cus, device.free.cus) == ("0000:c1:00.0/0", 304, 304)
    assert device.unique_id == 0x00A1B2C3D4E5F607


@pytest.mark.parametrize(
    "odd", [{}, {"free": None, "cus": "x", "unique_id": "?", "hive": 0}, {"free": [], "new": {}}]
)
def test_tolerant(agent: Any, client: Client, odd: dict[str, Any]) -> None:
    """Fields that are absent, unknown or of another type break nothing, and stay in raw."""
    agent.devices = [{"device": "d/0", **odd}]
    (device,) = client.devices()
    assert device.raw == {"device": "d/0", **odd}


def test_grant_has_a_request_id(agent: Any, client: Client) -> None:
    """A grant whose answer is lost takes one lease: the retry carries the same id."""
    agent.canned = [None]
    lease = client.grant(holder={"kind": "client", "id": "me"}, anchor={"kind": "ttl"}, ttl_seconds=60)
    first, second = agent.called("POST")
    assert first == second
    assert len(first["request_id"]) == 32
    assert (lease.id, len(agent.leases)) == (1001, 1)
    assert "wait_seconds" not in first


def test_grant_takes_a_request_id(agent: Any, client: Client) -> None:
    """A request id of the caller's is kept."""
    client.grant(holder={"kind": "client", "id": "me"}, anchor={"kind": "ttl"}, request_id="mine-1")
    assert agent.called("POST")[0]["request_id"] == "mine-1"


def test_queued(agent: Any, client: Client) -> None:
    """A queued lease is followed until it is active."""
    agent.grant_state = "queued"
    lease = client.grant(holder={"kind": "client", "id": "me"}, anchor={"kind": "ttl"}, wait_seconds=60)
    assert client.granted(lease).state == "active"


def test_queued_in_vain(agent: Any, client: Client) -> None:
    """A lease that was cancelled in the queue is a refusal with the reason."""
    agent.grant_state = "cancelled"
    lease = client.grant(holder={"kind": "client", "id": "me"}, anchor={"kind": "ttl"})
    with pytest.raises(errors.Refused, match="cancelled"):
        client.granted(lease)


@pytest.mark.parametrize("state", ["released", "releasing"])
def test_release(agent: Any, client: Client, state: str) -> None:
    """A release returns how far it came."""
    agent.add_lease()
    agent.release_state = state
    assert client.release(1001).state == state


def test_release_of_nothing(client: Client) -> None:
    """The release of a lease that the agent does not know is success."""
    assert client.release(4711).state == "released"


def test_pages(agent: Any, client: Client) -> None:
    """A list is followed over all its pages, and a cursor that stands still ends it."""
    pages = [{"leases": [{"id": n, "state": "active"}], "next": min(n, 2)} for n in (1, 2, 3)]
    agent.canned = [(200, page, {}) for page in pages]
    assert [lease.id for lease in client.leases()] == [1, 2, 3]


def test_other_states_are_left_out(agent: Any, client: Client) -> None:
    """Without a filter only what has not ended is listed, whatever the agent serves."""
    agent.add_lease(state="released")
    agent.add_lease()
    assert [lease.id for lease in client.leases()] == [1002]


def test_renew_attach_events(agent: Any, client: Client) -> None:
    """The other calls reach their routes."""
    agent.add_lease()
    agent.events = [{"id": 5, "kind": "granted", "at": "2031-05-04T10:00:00Z"}]
    assert client.renew(1001, 60).id == client.attach(1001).id == 1001
    assert agent.called("POST", "/v1/leases/1001/renew") == [{"ttl_seconds": 60}]
    events, cursor = client.events()
    assert (events[0].kind, cursor) == ("granted", 5)
    assert client.events(cursor) == ((), 5)


@pytest.mark.parametrize(
    ("status", "code", "kind", "exit_code"),
    [
        (409, "CardInsufficientMemory", errors.Refused, 3),
        (403, "NotAllowed", errors.NotAllowed, 4),
        (404, "UnknownThing", errors.Unknown, 2),
        (410, "StaleLease", errors.Stale, 3),
        (422, "InvalidField", errors.InvalidField, 2),
        (422, "KeyReused", errors.KeyReused, 2),
        (429, "TooMany", errors.TooMany, 3),
        (400, "MalformedBody", errors.BadRequest, 2),
        (413, "TooLarge", errors.BadRequest, 2),
        (503, "NodeUnhealthy", errors.AgentUnhealthy, 5),
        (503, "OutsideFault", errors.AgentUnhealthy, 5),
        (500, "InternalError", errors.AgentUnhealthy, 5),
    ],
)
def test_errors(status: int, code: str, kind: type, exit_code: int) -> None:
    """Each answer has its class, its code and its exit code."""
    error = error_from(status, {"code": code, "detail": "why", "field": "slices[0].cus"})
    assert type(error) is kind
    assert (error.code, error.exit_code, str(error)) == (code, exit_code, "why")


def test_an_answer_without_a_code_has_its_kinds(agent: Any, client: Client) -> None:
    """As from something between us and the agent."""
    agent.canned = [(400, b'{"detail": "why"}', {})]
    with pytest.raises(errors.BadRequest, match="why") as raised:
        client.node()
    assert raised.value.code == "BadRequest"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{", b"[" * 100_000])
def test_answers_that_are_no_problem(agent: Any, client: Client, body: bytes) -> None:
    """An error without a problem document is told by its status."""
    agent.canned = [(404, body, {})]
    with pytest.raises(errors.Unknown, match="404"):
        client.node()


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"[" * 100_000])
def test_answers_that_are_no_json(agent: Any, client: Client, body: bytes) -> None:
    """A success that is no JSON object did not come from an agent."""
    agent.canned = [(200, body, {})]
    with pytest.raises(errors.AgentUnreachable, match="JSON"):
        client.node()


def test_refusal(refusal: dict[str, Any]) -> None:
    """A refusal tells who blocks, which devices and when it may fit."""
    error = error_from(409, refusal)
    assert isinstance(error, errors.Refused)
    assert (error.blockers, len(error.devices), error.next) == ((1001, 1002), 8, refusal["next"])
    assert error.earliest_at == "2031-05-04T12:00:00Z"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc with process 77 inside the cgroup of a lease."""
    for name in ("self", "77", "78"):
        (tmp_path / name).mkdir()
    mount = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    (tmp_path / "self" / "mountinfo").write_text(mount, encoding="ascii")
    (tmp_path / "77" / "cgroup").write_text("0::/gpulease.slice/gpulease-1001.slice/x\n", encoding="ascii")
    (tmp_path / "78" / "cgroup").write_text("0::/\n", encoding="ascii")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "ids"),
    [("17", (17,)), ("slurm:42", (1002,)), ("docker:web", (1003,)), ("pid:77", (1001,)), ("pid:55", (1004,))],
)
def test_names_of_leases(agent: Any, client: Client, proc: Path, text: str, ids: tuple[int, ...]) -> None:
    """A lease goes by its number, its holder, or a process that is in its cgroup or anchors it."""
    agent.add_lease(cgroup="/gpulease.slice/gpulease-1001.slice")
    agent.add_lease(holder={"kind": "slurm", "id": "42", "uid": 5})
    agent.add_lease(holder={"kind": "docker", "id": "web", "uid": 0})
    agent.add_lease(anchor={"kind": "process", "pid": 55})
    assert lease_ids(client, text, proc) == ids


@pytest.mark.parametrize(
    "cgroup", ["/gpulease.slice/gpulease-100.slice", "/gpulease.slice/gpulease-1001.slicex"]
)
def test_look_alike_cgroups(agent: Any, client: Client, proc: Path, cgroup: str) -> None:
    """A cgroup whose path only begins alike is not the lease's."""
    agent.add_lease(cgroup=cgroup)
    with pytest.raises(errors.Unknown):
        lease_ids(client, "pid:77", proc)


def test_root_cgroup_names_nothing(agent: Any, client: Client, proc: Path) -> None:
    """A process at the root of its cgroup namespace is in no lease."""
    agent.add_lease(cgroup="/")
    with pytest.raises(errors.Unknown):
        lease_ids(client, "pid:78", proc)


def test_mine(agent: Any, client: Client, proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mine` is the lease that we run in by its variable, else those of our user."""
    agent.add_lease()
    agent.add_lease(holder={"kind": "client", "id": None, "uid": None})
    monkeypatch.delenv("GPULEASE_ID", raising=False)
    assert lease_ids(client, "mine", proc) == (1001,)
    monkeypatch.setenv("GPULEASE_ID", "1002")
    assert lease_ids(client, "mine", proc) == (1002,)


def test_ambiguous(agent: Any, client: Client, proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of several leases is refused where one is needed, and they are listed."""
    agent.add_lease()
    agent.add_lease()
    monkeypatch.delenv("GPULEASE_ID", raising=False)
    with pytest.raises(errors.UsageError, match="1001, 1002"):
        lease_id(client, "mine", proc)


@pytest.mark.parametrize("text", ["", "x", "pid:", "pid:x", "slurm:", "-1", "١"])
def test_no_names(client: Client, text: str) -> None:
    """What is no name of a lease is a usage error that lists the ways."""
    with pytest.raises(errors.UsageError, match="slurm:JOB"):
        lease_ids(client, text)
