"""A ledger that is lost while leases live: what the agent still knows of them after its next start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent import wiring
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.adapters.sidecar_files import SidecarFiles

pytestmark = [
    pytest.mark.usefixtures("own_agent"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sidecars are root's"),
]


def lose(node) -> None:
    """Stop the agent, and take its ledger with all that lies beside it."""
    node.stop()
    for file in node.state_dir.iterdir():
        if file.is_file() and file.name != "lock":
            file.unlink()


def running(node):
    """A command in a lease, and the lease, once the command runs."""
    words = ("run", "--cu", "25%", "--vram", "1G", "--", "sh", "-c", "echo up; read x; exit 0")
    child = node.background(*words)
    assert child.stdout.readline() == "up\n"
    return child, node.live()[0]


def finish(child) -> None:
    child.stdin.write("go\n")
    child.stdin.flush()
    assert child.wait(timeout=60) == 0


def test_a_lost_ledger_is_rebuilt_under_a_running_command(node):
    """Same id, CUs held, the command undisturbed; new ids are above, and its end releases the lease."""
    child, lease = running(node)
    key = lease["slices"][0]["device"]
    held = node.free(key)
    lose(node)
    node.start()
    back = node.lease(lease["id"])
    assert {**back, "slices": None} == {**lease, "slices": None}
    assert [one["cus"] for one in back["slices"]] == [one["cus"] for one in lease["slices"]]
    assert node.free(key) == held
    body = {"slices": [{"device": [key], "cu_percent": 25}], "anchor": {"kind": "ttl"}}
    second = node.http("POST", "/v1/leases", body).body
    assert second["id"] > lease["id"]
    assert not set(second["slices"][0]["cus"].split(",")) & set(lease["slices"][0]["cus"].split(","))
    finish(child)
    assert node.until(lambda: node.lease(lease["id"])["state"] == "released")


def test_a_rebuilt_lease_can_be_released(node):
    """By its holder, as if nothing had been."""
    body = {"slices": [{"device": [node.device()["device"]], "cu_percent": 25}], "anchor": {"kind": "ttl"}}
    lease = node.http("POST", "/v1/leases", body).body
    lose(node)
    node.start()
    assert node.http("DELETE", f"/v1/leases/{lease['id']}?wait=5").body["state"] == "released"


def test_without_the_sidecar_nothing_is_granted_until_the_command_has_ended(node):
    """503 with the reason; the command runs on, and its end lets grants through again."""
    if find_mount() is None:
        pytest.skip("no cgroup2 mount: a lease without its sidecar leaves no trace")
    child, lease = running(node)
    stem = wiring.stem(node.state_dir)
    lose(node)
    SidecarFiles(stem).remove(lease["id"])
    node.start(ready=False)
    body = {"slices": [{"device": [node.device()["device"]], "cu_percent": 25}], "anchor": {"kind": "ttl"}}
    answer = node.http("POST", "/v1/leases", body)
    assert answer.status == 503
    assert Path(lease["cgroup"]).name in str(answer.body)
    assert child.poll() is None
    finish(child)
    second = node.until(lambda: (a := node.http("POST", "/v1/leases", body)).status == 201 and a.body)
    assert second["id"] > lease["id"]
