"""An agent that is stopped, replaced and started keeps what runs; an old ledger takes nothing from it."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing

import pytest

pytestmark = [
    pytest.mark.usefixtures("own_agent"),
    pytest.mark.unattacked,  # what these leases hold is not the question
]


def running(node):
    """A live `gpulease run` of a whole device, and its lease."""
    child = node.background("run", "--gpus", "1", "--", "sh", "-c", "echo up; read x; exit 0")
    assert child.stdout.readline() == "up\n"
    return child, max(node.live(), key=lambda lease: lease["id"])


def ended(node, child) -> None:
    """End it as it ends by itself: its lease goes with it."""
    child.stdin.write("go\n")
    child.stdin.flush()
    assert child.wait(timeout=30) == 0
    assert node.until(lambda: not node.live())


def device_of(lease) -> str:
    return lease["slices"][0]["device"]


def ask(node, device: str):
    body = {"slices": [{"device": [device], "cu_percent": 25}], "anchor": {"kind": "ttl"}}
    return node.http("POST", "/v1/leases", body)


def put_back(node, copy) -> None:
    """Restore *copy* as the handbook says: with the agent stopped, its log with the ledger."""
    node.stop()
    for beside in node.state_dir.glob("ledger.sqlite3-*"):
        beside.unlink()
    shutil.copyfile(copy, node.state_dir / "ledger.sqlite3")
    node.start(ready=False)


def test_a_command_outlives_a_stop_and_a_start(node):
    """Stopped and started as an upgrade does it, the agent has the command's lease, and ends it with it."""
    child, lease = running(node)
    node.stop()
    assert child.poll() is None
    node.start()
    assert node.lease(lease["id"])["state"] == "active"
    assert ask(node, device_of(lease)).status == 409
    ended(node, child)


def test_an_old_backup_takes_nothing_from_a_live_lease(node, tmp_path):
    """With a copy from before its grant put back, what a live lease holds is not granted, nor its id."""
    copy = tmp_path / "copy"
    done = node.python("-m", "nodeagent.cli.main", "backup", "--state-dir", str(node.state_dir), str(copy))
    assert done.returncode == 0, done.stderr
    child, lease = running(node)
    put_back(node, copy)
    assert ask(node, device_of(lease)).status in (409, 503)
    assert child.poll() is None
    child.stdin.write("go\n")
    child.stdin.flush()
    assert child.wait(timeout=30) == 0
    granted = node.until(lambda: (answer := ask(node, device_of(lease))).status == 201 and answer)
    assert granted.body["id"] > lease["id"]


def test_ids_rise_past_a_ledger_set_aside(node, tmp_path):
    """On a drained node the ledger can be set aside, as for an older version: ids go on above all given."""
    lease = ask(node, node.device()["device"]).body
    assert node.http("DELETE", f"/v1/leases/{lease['id']}?wait=5").body["state"] == "released"
    node.stop()
    for file in node.state_dir.glob("ledger.sqlite3*"):
        file.rename(tmp_path / file.name)
    node.start()
    assert ask(node, node.device()["device"]).body["id"] > lease["id"]


def test_a_newer_ledger_is_refused_with_the_way_out(node, tmp_path):
    """An older version on a newer one's ledger answers, grants nothing and says what to install."""
    node.stop()
    ledger, kept = node.state_dir / "ledger.sqlite3", tmp_path / "kept"
    with closing(sqlite3.connect(ledger)) as connection:
        (before,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    kept.write_bytes(ledger.read_bytes())
    node.start(ready=False)
    assert ask(node, "0000:c1:00.0/0").status == 503
    assert "newer than this version" in node.http("GET", "/v1/node").body["reason"]
    node.stop()
    assert ledger.read_bytes() == kept.read_bytes()
    with closing(sqlite3.connect(ledger)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (before,))
        connection.commit()
    node.start()
