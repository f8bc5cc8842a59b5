"""The plugin from a call of docker's to its answer: tickets are spent, given back and bound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.docker_tickets import Tickets
from nodeagent.domain.docker_body import Request
from nodeagent.domain.docker_paths import CLOSED, READ_ONLY, Trees
from nodeagent.domain.docker_ticket import digest
from nodeagent.service.docker_plugin import DockerPlugin

TOKEN = "0123456789abcdef" * 2
CONTAINER = "ab" * 32
DEVICE = {"PathOnHost": "/dev/kfd", "PathInContainer": "/dev/kfd", "CgroupPermissions": "rwm"}
HOST = {"Devices": [DEVICE], "CgroupParent": "gpulease-7.slice"}
LABELS = {"gpulease.lease": "7", "gpulease.ticket": TOKEN}
RECORD = {
    "lease": 7,
    "cgroup_parents": ["gpulease-7.slice"],
    "devices": ["/dev/kfd"],
    "mounts": [],
    "groups": [],
}
CREATED = json.dumps({"Id": CONTAINER, "Warnings": []}).encode()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The tickets of one agent, with one in it."""
    made = tmp_path / "tickets/gpulease"
    made.mkdir(mode=0o700, parents=True)
    (made / digest(TOKEN)).write_text(json.dumps(RECORD))
    return made


@pytest.fixture
def plugin(directory: Path) -> DockerPlugin:
    """The plugin on a node of ordinary paths."""
    trees = Trees(CLOSED, READ_ONLY, lambda path: path)
    return DockerPlugin(Tickets(directory.parent), lambda: trees)


def asked(host: Any = HOST, labels: Any = LABELS, uri: str = "/v1.41/containers/create") -> Request:
    body = json.dumps({"Image": "t:1", "Labels": labels, "HostConfig": host}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    return Request("POST", uri, headers, body)


def test_a_ticket_opens_its_devices_once(plugin: DockerPlugin) -> None:
    """The same body again is refused, with what to do."""
    assert plugin.before(asked()) is None
    assert "spent" in str(plugin.before(asked()))


def test_without_a_ticket_there_is_no_gpu(plugin: DockerPlugin) -> None:
    """The reason names the way to one."""
    assert "gpulease docker run" in str(plugin.before(asked(labels={})))


@pytest.mark.parametrize(
    "labels",
    [
        {"gpulease.ticket": "f" * 32},
        {"gpulease.ticket": ""},
        {"gpulease.ticket": "../gpulease/x"},
        {"gpulease.ticket": TOKEN.upper()},
        {"gpulease.ticket": [TOKEN]},
        {"gpulease.lease": "7"},
        {"GPULEASE.lease": "7"},
        {**LABELS, "gpulease.lease": "8"},
    ],
    ids=str,
)
def test_labels_without_a_live_ticket_are_refused(plugin: DockerPlugin, labels: Any) -> None:
    """A wrong or guessed ticket, a label by anybody, another lease's number: nothing comes of them."""
    assert plugin.before(asked(host={}, labels=labels))
    assert plugin.before(asked()) is None


def test_a_refused_container_leaves_its_ticket(plugin: DockerPlugin) -> None:
    """A mistake beside the ticket does not cost it."""
    assert plugin.before(asked({**HOST, "Privileged": True}))
    assert plugin.before(asked()) is None


def test_an_image_that_is_missing_costs_no_ticket(plugin: DockerPlugin) -> None:
    """docker's client pulls it and asks again."""
    assert plugin.before(asked()) is None
    assert plugin.after(asked(), b"") is None
    assert plugin.before(asked()) is None


@pytest.mark.parametrize("answer", [b"{}", b"null", b'{"Id":"x"}', b'{"message":"no"}'])
def test_only_a_containers_id_is_bound(plugin: DockerPlugin, directory: Path, answer: bytes) -> None:
    """What is no container gives the ticket back."""
    plugin.before(asked())
    assert plugin.after(asked(), answer) is None
    assert [path.name for path in directory.iterdir()] == [digest(TOKEN)]


def test_the_container_is_bound_for_ever(plugin: DockerPlugin, directory: Path) -> None:
    """Its id stays beside the ticket, which nothing gives back then."""
    plugin.before(asked())
    plugin.after(asked(), CREATED)
    plugin.after(asked(), b"")
    assert json.loads((directory / f"{digest(TOKEN)}.bound").read_text()) == {"container": CONTAINER}
    assert plugin.before(asked())


def test_a_bound_containers_namespaces_are_its_own(plugin: DockerPlugin) -> None:
    """From then on nobody joins it, by name or id, nor takes its volumes."""
    host = {"PidMode": f"container:{CONTAINER}"}
    assert plugin.before(asked(host, {})) is None
    plugin.before(asked())
    plugin.after(asked(), CREATED)
    assert plugin.before(asked(host, {}))
    assert plugin.before(asked({"VolumesFrom": ["x"]}, {}))


def test_a_cdi_name_is_a_ticket(plugin: DockerPlugin) -> None:
    """It is spent like one, and one that nobody granted is refused."""
    request = {"Driver": "cdi", "DeviceIDs": [f"nodeagent.local/lease={TOKEN}"]}
    host = {"DeviceRequests": [request], "CgroupParent": "gpulease-7.slice"}
    other = {**host, "DeviceRequests": [{**request, "DeviceIDs": [f"nodeagent.local/lease={'f' * 32}"]}]}
    assert plugin.before(asked(other, {}))
    assert plugin.before(asked(host, {})) is None
    assert "spent" in str(plugin.before(asked(host, {})))


def test_one_container_shows_one_ticket(plugin: DockerPlugin) -> None:
    """Two leases' devices in one container are nobody's."""
    request = {"Driver": "cdi", "DeviceIDs": [f"nodeagent.local/lease={'f' * 32}"]}
    assert "one ticket" in str(plugin.before(asked({**HOST, "DeviceRequests": [request]})))


@pytest.mark.parametrize("answer", [b"", CREATED, b"not json", b"[]"])
def test_answers_to_other_calls_pass(plugin: DockerPlugin, answer: bytes) -> None:
    """Only a create's answer is looked at."""
    listing = Request("GET", "/v1.41/containers/json", {}, b"")
    assert plugin.after(listing, answer) is None
    assert plugin.after(asked(labels={}), answer) is None
