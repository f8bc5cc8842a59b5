"""Containers in a job's own cgroup, which Slurm makes and ends: below it where the engine can put them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from fake_engine import FakeEngine
from guest_world import guests, host, look
from service_builders import House, until
from slurm_world import Scope, Site

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.domain.container import Engine
from nodeagent.domain.lease import Lease
from nodeagent.domain.slurm import Word

pytestmark = [pytest.mark.cgroup2, pytest.mark.root]
Build = Callable[..., House]
STEP, CONTAINER = "step_0", "f" * 64


class EndingEngine(FakeEngine):
    """One whose stop ends the container's process, as an engine's own does, while *works*."""

    process: subprocess.Popen[bytes]
    works = True

    def stop(self, container: str, seconds: int) -> None:
        super().stop(container, seconds)
        if self.works:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def engine() -> EndingEngine:
    return EndingEngine()


@pytest.fixture
def site(build: Build, tree: CgroupTree, scope: Scope, engine: EndingEngine) -> Site:
    return Site(build(tree=tree, timeout=20, engines={Engine.DOCKER: engine}))


@pytest.fixture
def running(site: Site, scope: Scope, engine: EndingEngine, children: Any) -> Lease:
    """A job's lease with a step that ended, and a container beside it that goes on."""
    lease = site.granted()
    task = children.sleeper()
    scope.step(task.pid)
    hosted = host(site.house, lease, task.pid)
    assert hosted.view.cgroup_parent == f"{scope.path}/job_42"
    engine.process = children.sleeper()
    scope.step(engine.process.pid, step=CONTAINER)
    engine.create(hosted.view.labels, status="running")
    look(site.house)
    assert guests(site.house, lease)[0].armed
    task.kill()
    task.wait()
    until(lambda: not (scope.directory() / STEP / "cgroup.procs").read_text())
    (scope.directory() / STEP).rmdir()
    return lease


def test_the_epilog_ends_what_scancel_did_not(
    site: Site, scope: Scope, engine: EndingEngine, running: Lease
) -> None:
    """By its engine; the job's cgroup, which Slurm could not remove under it, goes too."""
    assert engine.process.poll() is None
    assert site.epilog().word is Word.RELEASED
    assert [call for call, _ in engine.calls] == ["stop"]
    assert not scope.directory().exists()


def test_an_engine_that_is_dead_leaves_the_container_to_the_sweep(
    site: Site, scope: Scope, engine: EndingEngine, running: Lease
) -> None:
    """It is in the job's cgroup, whose rest is ended once no slurmstepd is in there."""
    engine.down = True
    verdict = site.epilog(wait=0)
    engine.process.wait()  # as its shim would
    until(lambda: site.epilog().word in (Word.RELEASED, Word.NONE))
    assert verdict.word is Word.RELEASING
    assert not scope.directory().exists()


def test_systemds_driver_has_no_way_into_a_jobs_cgroup(
    build: Build, tree: CgroupTree, scope: Scope, children: Any
) -> None:
    """It takes slices alone: the container lies in the engine's own parent, and is known by its note."""
    site = Site(build(tree=tree, engines={Engine.DOCKER: FakeEngine(driver="systemd")}))
    lease = site.granted()
    task = children.sleeper()
    scope.step(task.pid)
    assert host(site.house, lease, task.pid).view.cgroup_parent is None
