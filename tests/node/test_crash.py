"""What a crash of the agent leaves: nothing twice, nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.fixture(autouse=True)
def own_agent(agent):
    """These tests kill the agent, so it must be one that they started."""
    if agent.process is None:
        pytest.skip("the agent is not ours to kill")


def test_leases_outlive_a_killed_agent(node):
    """After kill -9 and a start the same lease is active, its CUs are still held, and it can be released."""
    device = node.device()
    body = {"slices": [{"device": [device["device"]], "cu_percent": 25}], "anchor": {"kind": "ttl"}}
    lease = node.http("POST", "/v1/leases", body).body
    held = node.free(device["device"])
    node.kill()
    node.start()
    assert node.lease(lease["id"])["state"] == "active"
    assert node.free(device["device"]) == held
    assert node.http("DELETE", f"/v1/leases/{lease['id']}?wait=5").body["state"] == "released"


def test_a_command_outlives_a_killed_agent_and_is_released_after(node):
    """A command goes on while the agent is away; when it has ended the lease is released."""
    child = node.background("run", "--cu", "25%", "--vram", "1G", "--", "sh", "-c", "echo up; read x; exit 0")
    assert child.stdout.readline() == "up\n"
    lease = node.live()[0]
    node.kill()
    node.start()
    assert node.lease(lease["id"])["state"] == "active"
    child.stdin.write("go\n")
    child.stdin.flush()
    assert child.wait(timeout=30) == 0
    assert node.until(lambda: not node.live())


def test_ids_never_come_again(node):
    """Ids grow across a crash: a lease id is a fencing token."""
    device = node.device()
    body = {"slices": [{"device": [device["device"]], "cu_percent": 25}], "anchor": {"kind": "ttl"}}
    first = node.http("POST", "/v1/leases", body).body["id"]
    node.kill()
    node.start()
    assert node.http("POST", "/v1/leases", body).body["id"] > first


def test_run_without_an_agent_is_125_before_anything_runs(node, tmp_path):
    """When the agent is away, `run` fails with 125 and the command never starts."""
    witness = tmp_path / "ran"
    environment = {**os.environ, "GPULEASE_SOCKET": str(tmp_path / "none.sock")}
    done = subprocess.run(
        [sys.executable, "-m", "gpulease", "run", "--cu", "25%", "--", "touch", str(witness)],
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 125
    assert not witness.exists()
