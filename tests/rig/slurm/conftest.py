"""Real Slurm on the rig's kernel, and an agent for it: cgroup v2, systemd, dmem."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulease.transport import Transport
from tests.rig.conftest import GUEST, Rig, missing
from tests.rig.slurm.site import ROOT, Site, command, until

SOCKET = "/run/nodeagent/api.sock"
LIVE = "queued,preparing,active,lost,releasing"


class Agent:
    """The service ``nodeagent``, as tests/rig/agent starts it."""

    def leases(self, state: str = LIVE) -> list[dict[str, Any]]:
        """Those in these states; without any, those that have not ended."""
        found: list[dict[str, Any]] = []
        after = 0
        while after is not None:
            target = f"/v1/leases?state={state}&after={after}&limit=500"
            page = json.loads(Transport(SOCKET, timeout=60).call("GET", target).body)
            found, after = found + page["leases"], page["next"]
        return found

    def lease(self, job: str) -> dict[str, Any]:
        """The lease of a job."""
        (found,) = (
            one for one in self.leases() if one["holder"] == {**one["holder"], "kind": "slurm", "id": job}
        )
        return found


@pytest.fixture(scope="session")
def started() -> Iterator[tuple[Site, Agent]]:
    """Slurm and the agent, both as services."""
    if not GUEST.is_dir():
        pytest.skip("runs in the rig: make test-rig")
    if reason := missing(dmem=True):
        pytest.skip(reason)
    if shutil.which("slurmd") is None:
        pytest.skip("this guest was built without Slurm")
    site = Site(sorted(Path("/dev/dri").glob("renderD*")))
    site.set_up()
    subprocess.run(["systemctl", "stop", "nodeagent"], check=False, capture_output=True)
    command(str(ROOT / "tests/rig/agent"), seconds=600)
    site.start()
    yield site, Agent()
    site.stop()


@pytest.fixture
def agent(started: tuple[Site, Agent]) -> Agent:
    return started[1]


@pytest.fixture
def site(started: tuple[Site, Agent]) -> Iterator[Site]:
    """An idle node. A test that leaves a lease, a job's cgroup or a drained node fails."""
    site, agent = started
    yield site
    site.end_jobs()
    until(lambda: not agent.leases(), lambda: agent.leases())
    until(lambda: not site.cgroups(), site.cgroups)
    assert site.state() == "idle", site.trouble()


@pytest.fixture
def gpus() -> Callable[[Path], Any]:
    """The GPU of a render node."""
    known = {gpu.node: gpu for gpu in Rig().gpus}
    return known.__getitem__
