"""grant --cdi: a lease in words for a command line of the user's own."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

TICKET = "0123456789abcdef" * 2
NAME = f"nodeagent.local/lease={TICKET}"
LABELS = ["--label", "gpulease.lease=1001", "--label", f"gpulease.ticket={TICKET}"]
PARENT = ["--cgroup-parent", "gpulease-1001.slice"]


@pytest.fixture
def device(agent: Any) -> str:
    """An agent that makes leases CDI devices; the name of the first."""
    agent.container = {"cdi": NAME, "labels": {"gpulease.lease": "1001", "gpulease.ticket": TICKET}}
    return NAME


def anchor_of(agent: Any) -> dict[str, Any]:
    (body,) = agent.called("POST", "/v1/leases")
    assert body["cdi"] is True
    return body["anchor"]


def test_stdout_has_nothing_but_options_for_docker_run(agent: Any, gpulease: Any, device: str) -> None:
    """One line that a shell splits into words; the lease, which lives by its container, is on stderr."""
    done = gpulease("grant", "--cdi", "--vram", "8G")
    (line,) = done.stdout.splitlines()
    assert line.split() == shlex.split(line) == ["--device", device, *PARENT, *LABELS]
    assert "1001" in done.stderr
    assert anchor_of(agent) == {"kind": "container", "engine": "docker", "start_seconds": 900}


def test_with_a_time_of_its_own_a_device_is_for_many_containers(
    agent: Any, gpulease: Any, device: str
) -> None:
    """It lives by that, and says how to renew it."""
    done = gpulease("grant", "--cdi", "--ttl", "4h")
    assert anchor_of(agent) == {"kind": "ttl"}
    assert "gpulease renew 1001" in done.stderr


def test_podmans_own_words(agent: Any, gpulease: Any, device: str) -> None:
    """A cgroup's name is spelled for one engine, so it is left out where the agent did not know which."""
    agent.container |= {"engine": "podman"}
    assert gpulease("grant", "--cdi", "podman").stdout.split() == ["--device", device, *PARENT, *LABELS]
    assert anchor_of(agent)["engine"] == "podman"
    agent.container |= {"engine": None}
    words = gpulease("grant", "--cdi", "podman", "--ttl", "4h").stdout.split()
    assert words == ["--device", device, "--label", "gpulease.lease=1001", *LABELS[2:]]


def test_what_adds_nothing_is_left_out(agent: Any, gpulease: Any, device: str) -> None:
    """On cgroup version 1 a container cannot lie in the lease's cgroup."""
    agent.container |= {"cgroup_parent": None}
    assert gpulease("grant", "--cdi").stdout.split() == ["--device", device, *LABELS]


def test_compose_reads_its_variables_from_a_file(agent: Any, gpulease: Any, device: str) -> None:
    """Also what is empty: a variable that is not set is a warning of compose's."""
    agent.container |= {"cgroup_parent": None}
    lines = gpulease("grant", "--cdi", "env").stdout.splitlines()
    assert lines == ["GPULEASE_ID=1001", f"GPULEASE_TICKET={TICKET}", "GPULEASE_CGROUP_PARENT="]


def test_json_is_the_answer_as_ever(gpulease: Any, device: str) -> None:
    """The device's name is in it."""
    assert json.loads(gpulease("grant", "--cdi", "--json").stdout)["container"]["cdi"] == device


def test_without_the_option_no_device_is_asked_for(agent: Any, gpulease: Any) -> None:
    """An agent from before there were any knows no such field."""
    gpulease("grant")
    (body,) = agent.called("POST", "/v1/leases")
    assert "cdi" not in body


@pytest.mark.parametrize("name", [None, "a b", "$(id)", "x;y"])
def test_an_answer_that_is_no_plain_word_is_not_printed(agent: Any, gpulease: Any, name: str | None) -> None:
    """What a shell would take for more than one word, or for a command."""
    agent.container = {"cdi": name}
    done = gpulease("grant", "--cdi")
    assert (done.returncode, done.stdout) == (5, "")
    assert "BadAnswer" in done.stderr
