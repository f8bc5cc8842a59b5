"""What a crash of the agent leaves: nothing twice, nothing lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("own_agent")


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


def test_a_damaged_ledger_stops_grants_and_a_backup_brings_it_back(node, tmp_path):
    """On a garbage ledger the agent answers and grants nothing; a restored backup has the lease."""
    body = {"slices": [{"device": [node.device()["device"]], "cu_percent": 25}], "anchor": {"kind": "ttl"}}
    lease = node.http("POST", "/v1/leases", body).body
    ledger, copy = node.state_dir / "ledger.sqlite3", tmp_path / "copy"
    done = node.python("-m", "nodeagent.cli.main", "backup", "--state-dir", str(node.state_dir), str(copy))
    assert done.returncode == 0, done.stderr
    assert copy.stat().st_mode & 0o777 == 0o600
    node.stop()
    for beside in node.state_dir.glob("ledger.sqlite3-*"):
        beside.unlink()
    ledger.write_bytes(os.urandom(65536))
    node.start(ready=False)
    assert node.http("GET", "/healthz").status == 200
    assert node.http("POST", "/v1/leases", body).status == 503
    reason = node.http("GET", "/v1/node").body["reason"]
    assert str(ledger) in reason and "restore a backup" in reason
    node.stop()
    shutil.copyfile(copy, ledger)
    node.start()
    assert node.lease(lease["id"])["state"] == "active"
    assert node.http("POST", "/v1/leases", body).body["id"] > lease["id"]
