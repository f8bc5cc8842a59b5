"""A node whose kernel has no dmem controller, as Debian's own: the tier is absent, and says why."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.domain.guarantee import Memory, Requirement
from nodeagent.domain.refusals import Code, Refusal
from tests.rig.wired import CGROUPS, GIB, Wired, path_of

pytestmark = pytest.mark.rig(dmem=False)

HYBRID = Path("/sys/fs/cgroup/unified")


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Callable[..., Wired]]:
    """Starts an agent on that node."""
    made: list[Wired] = []

    def start(**floor: str) -> Wired:
        made.append(Wired(tmp_path, **floor))
        return made[-1]

    yield start
    for one in made:
        for lease in one.built.ledger.live():
            one.release(lease)
        one.stop()


def test_the_tier_is_absent_and_says_why(wire) -> None:
    """By the file that was looked at: a kernel's version proves nothing."""
    tier = wire().tier()
    assert not tier.present
    assert f"{CGROUPS}/cgroup.controllers does not list dmem" in tier.why
    assert "CONFIG_CGROUP_DMEM" in tier.why


def test_nothing_is_closed_and_nothing_recorded(wire) -> None:
    """What systemd set up of controllers stays as it is, through a lease's life."""
    files = sorted(CGROUPS.glob("**/cgroup.subtree_control"))
    before = {path: path.read_text() for path in files if "gpulease" not in str(path)}
    agent = wire()
    agent.release(agent.grant(GIB))
    agent.built.reconciler.run_once()
    assert {path: path.read_text() for path in before if path.exists()} == before
    assert not (agent.state / "closure.json").exists()
    assert agent.events("closure_broken") == []


def test_a_lease_holds_its_processes_without_a_limit(wire) -> None:
    """Its cgroup is made and killed as ever; its memory is stated for what it is."""
    agent = wire()
    lease = agent.grant(GIB, GIB)
    assert lease.guarantee.memory is Memory.ADVISORY
    assert path_of(lease).is_dir()
    assert "dmem" not in {effect.kind for effect in agent.built.ledger.effects(lease.id)}
    inner = path_of(lease) / "inner"
    inner.mkdir()
    inside = subprocess.Popen(["sleep", "infinity"])
    (inner / "cgroup.procs").write_text(str(inside.pid))
    agent.release(lease)
    assert inside.wait() != 0
    assert not path_of(lease).exists()


def test_kernel_memory_is_refused_where_it_is_demanded(wire) -> None:
    """The refusal names the kind that is lacking, and why the node lacks it."""
    asked = wire().ask(GIB, require=Requirement(memory=Memory.KERNEL))
    assert isinstance(asked, Refusal)
    assert asked.code is Code.GUARANTEE_NOT_MET
    assert "memory" in asked.why
    assert "dmem" in asked.why


def test_the_sites_floor_refuses_every_lease(wire) -> None:
    """A site that demands the kernel tier grants nothing here, rather than less."""
    asked = wire(floor="kernel").ask(GIB)
    assert isinstance(asked, Refusal)
    assert asked.code is Code.GUARANTEE_NOT_MET


@pytest.mark.skipif(not HYBRID.is_dir(), reason="this guest has one hierarchy; RIG_HYBRID=1 gives it two")
def test_beside_version_1_leases_live_in_the_unified_hierarchy(wire) -> None:
    """A hybrid node's cgroup2 has no dmem, whatever its kernel has: leases are grouped, and not limited."""
    assert CGROUPS == HYBRID
    agent = wire()
    assert f"{HYBRID}/cgroup.controllers" in agent.tier().why
    lease = agent.grant(GIB)
    assert path_of(lease).is_relative_to(HYBRID)
    inside = subprocess.Popen(["sleep", "infinity"])
    (path_of(lease) / "cgroup.procs").write_text(str(inside.pid))
    # Version 1 still has it where systemd put it.
    held = [line for line in Path(f"/proc/{inside.pid}/cgroup").read_text().splitlines() if ":pids:" in line]
    assert held and all("gpulease" not in line for line in held)
    agent.release(lease)
    assert inside.wait() != 0
    assert not path_of(lease).exists()
