"""A second agent started by mistake, and one that stands still past every deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import COMMAND_SECONDS

pytestmark = [
    pytest.mark.usefixtures("own_agent"),
    pytest.mark.unattacked,  # what these leases hold is not the question
]


def second(node, *, socket: Path, state_dir: Path) -> subprocess.CompletedProcess[str]:
    """Start another agent and wait until it gives up."""
    command = [sys.executable, "-m", "nodeagent.cli.main", "serve", "--simulate", node.machine]
    where = ["--socket", str(socket), "--state-dir", str(state_dir)]
    return subprocess.run(
        [*command, *where], text=True, capture_output=True, timeout=COMMAND_SECONDS, check=False
    )


def a_lease(node, ttl: int = 900) -> dict:
    body = {"slices": [{"cu_percent": 25}], "anchor": {"kind": "ttl"}, "ttl_seconds": ttl}
    answer = node.http("POST", "/v1/leases", body)
    assert answer.status == 201, answer.body
    return answer.body


@contextlib.contextmanager
def standing_still(node) -> Iterator[None]:
    """Stop every process of the agent; they go on at the end."""
    arbiter = node.process.pid
    children = Path(f"/proc/{arbiter}/task/{arbiter}/children").read_text().split()
    every = [arbiter, *map(int, children)]
    for pid in every:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(every):
            os.kill(pid, signal.SIGCONT)


def test_a_second_agent_on_a_state_directory_is_refused(node, tmp_path):
    """It ends, naming the first one's process and the way out; the first goes on with its leases."""
    lease = a_lease(node)
    done = second(node, socket=tmp_path / "s", state_dir=node.state_dir)
    assert done.returncode != 0
    assert "another agent" in done.stderr and str(node.process.pid) in done.stderr
    assert "--state-dir" in done.stderr
    assert node.lease(lease["id"])["state"] == "active"
    assert a_lease(node)["id"] > lease["id"]


def test_a_second_agent_on_a_socket_is_refused(node, tmp_path):
    """It ends with the reason, and whoever calls there still reaches the first."""
    lease = a_lease(node)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    done = second(node, socket=node.socket, state_dir=state)
    assert done.returncode != 0
    assert "another agent answers there" in done.stderr
    assert node.lease(lease["id"])["state"] == "active"


def test_an_agent_that_stood_still_ends_what_ran_out_and_nothing_else(node):
    """Past the end of a lease it releases that one as it goes on; others live, and new ones are granted."""
    short, long = a_lease(node, ttl=2), a_lease(node)
    with standing_still(node):
        time.sleep(4)
    assert node.until(lambda: node.lease(short["id"])["state"] == "released")
    assert node.lease(long["id"])["state"] == "active"
    assert a_lease(node)["id"] > long["id"]
