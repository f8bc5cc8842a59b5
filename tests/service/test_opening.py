"""What the agent closed is opened from its records, without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from service_builders import GIB, House
from test_kernel_tier import Dmem

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.adapters.closure import OutsideCgroups
from nodeagent.adapters.gate_record import GateRecord
from nodeagent.domain.errors import LedgerUnavailable
from nodeagent.domain.records import EffectState
from nodeagent.ledger.reader import LedgerReader
from nodeagent.service.opening import Opening

BOOT = "boot"


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """A directory that stands in for a cgroup2 mount, with a user's slice, a job and a lease."""
    root = tmp_path / "cgroup"
    for path in ("user.slice", "system.slice/job_7", "gpulease_test.slice"):
        (root / path).mkdir(parents=True)
    for path in (root, *root.rglob("*")):
        (path / "cgroup.procs").write_text("")
    return root


def test_a_dead_agents_limits_are_all_opened(house: House, mount: Path, tmp_path: Path) -> None:
    """Outside leases back to what there was before, leases' own gone, and jobs' as far as they are ours."""
    tree, region = CgroupTree(mount, "gpulease_test.slice"), house.survey.found().pools[0].region
    dmem = Dmem((region,))
    user, job = tree.resolve("/user.slice"), tree.resolve("/system.slice/job_7")
    assert user is not None and job is not None
    dmem.held["/user.slice"] = {region: 5 * GIB}
    OutsideCgroups(tree, dmem, tmp_path, BOOT).cap("/user.slice", {region: 0})
    lease = house.grant(cus=8)
    own = tree.create(lease.id)
    dmem.limit(own, region, GIB)
    dmem.limit(job, region, 2 * GIB)
    with house.ledger.write() as tx:
        effect = tx.plan_effect(lease.id, "dmem", {"regions": {region: 2 * GIB}, "name": "job_7"})
        tx.mark_effect(effect.id, EffectState.VERIFIED, {"path": job.path, "inode": job.inode})

    def opening() -> Opening:
        outside = OutsideCgroups(tree, dmem, tmp_path, BOOT)
        reader = LedgerReader(house.ledger._path, house.clock)
        return Opening(tree, dmem, outside, GateRecord(tmp_path, BOOT), reader)

    done = opening().open()
    assert dmem.held == {"/user.slice": {region: 5 * GIB}, own.path: {region: None}, job.path: {region: None}}
    assert (done["limits outside leases"], done["limits of leases"]) == ("1 taken back", "1 lifted")
    assert done["limits of jobs"] == "1 lifted"
    again = opening().open()
    assert [again[name].partition(" ")[0] for name in again] == ["0", "0", "0", "0"]


def test_a_part_that_fails_keeps_no_other_from_its_turn(mount: Path, tmp_path: Path) -> None:
    """A ledger that is gone, and a record that is none, are said."""

    class Gone:
        def live(self) -> tuple[()]:
            raise LedgerUnavailable("the ledger is gone")

        def journals(self, of: object, kinds: object) -> dict[int, tuple[()]]:
            return {}

    tree, dmem = CgroupTree(mount, "gpulease_test.slice"), Dmem(("r",))
    (tmp_path / "closure.json").write_text("{")
    own = CgroupRef(*[getattr(tree.create(3), name) for name in ("path", "inode")])
    dmem.limit(own, "r", GIB)
    done = Opening(
        tree, dmem, OutsideCgroups(tree, dmem, tmp_path, BOOT), GateRecord(tmp_path, BOOT), Gone()
    ).open()
    assert done["limits outside leases"].startswith("FAILED") and done["limits of jobs"].startswith("FAILED")
    assert dmem.held[own.path] == {"r": None}


def test_where_nothing_can_be_limited_there_is_nothing_to_open(tmp_path: Path) -> None:
    """A node without cgroup2 or dmem."""
    done = Opening(None, None, None, GateRecord(tmp_path, BOOT), None).open()
    assert not any(said.startswith("FAILED") for said in done.values())
