"""A Slurm job's own cgroup on the real kernel: limited before its first process, and when it is made anew."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent import config as settings
from nodeagent.domain.lease import HolderKind, Lease
from nodeagent.domain.slurm import Verdict
from nodeagent.service.orders import Caller
from tests.rig.conftest import Gpu, Rig, fake_gpus
from tests.rig.wired import CGROUPS, Wired, closed, limit, open_again

pytestmark = pytest.mark.rig

SCOPE = CGROUPS / "system.slice/slurmstepd.scope"
JOB = SCOPE / "job_42"


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wired]:
    """An agent whose GPUs are Slurm's, four shards each, and a scope in which jobs run."""
    directory = tmp_path_factory.mktemp("agent")
    gpus = fake_gpus()
    lines = [f"Name=gpu File=/dev/dri/renderD{gpu.minor}" for gpu in gpus]
    lines.append(f"Name=shard Count={4 * len(gpus)}")
    (directory / "gres.conf").write_text("\n".join(lines) + "\n")
    made_scope = not SCOPE.exists()
    SCOPE.mkdir(exist_ok=True)
    slurm = settings.Slurm(gres_conf=str(directory / "gres.conf"), spool=directory / "spool")
    made = Wired(directory, slurm=slurm)
    closed(made)
    yield made
    made.stop()
    open_again(directory)
    if made_scope:
        SCOPE.rmdir()


def call(wired: Wired, script: str) -> Verdict:
    """What a job of one shard of the first GPU says through its prolog or its epilog."""
    at = Path("/proc/uptime").read_text().split()[0]
    told = ["SLURM_JOB_ID=42", "SLURM_JOB_UID=1000", "SLURM_JOB_GID=1000", "SLURM_JOB_GPUS=0"]
    body = "".join(f"{one}\0" for one in [*told, f"GPULEASE_AT={at}"]).encode()
    root = Caller(0, 0, frozenset(), os.getpid(), None, administrator=True)
    verdict: Verdict = getattr(wired.built.agent.slurm, script)(root, body, 4)
    return verdict


@pytest.fixture
def job(wired: Wired) -> Iterator[Lease]:
    """A job that was let start."""
    assert call(wired, "prolog").word == "granted"
    yield wired.built.ledger.leases(holder=(HolderKind.SLURM, "42"))[-1]
    call(wired, "epilog")
    assert not JOB.exists()


def size_of(lease: Lease) -> int:
    (held,) = lease.slices
    return held.placed.vram_bytes


def step(rig: Rig, gpu: Gpu):  # type: ignore[no-untyped-def]
    """A process of the job in a step, whose directory slurmstepd makes."""
    (JOB / "step_0").mkdir(parents=True, exist_ok=True)
    return rig.holder(gpu, JOB / "step_0")


def test_a_job_gets_its_shard_and_no_more(wired: Wired, rig: Rig, job: Lease) -> None:
    """dmem.max of the job's directory holds its steps, and the lease is stated held by the kernel."""
    gpu, size = rig.gpus[0], size_of(job)
    assert job.guarantee.memory == "kernel"
    assert limit(JOB, gpu.region) == str(size)
    first, second = step(rig, gpu), step(rig, gpu)
    assert first.do(f"alloc {size - 4096}") == "ok"
    assert second.do("alloc 4096") == "ok"
    assert second.do("alloc 4096") == "ENOMEM"
    for one in (first, second):
        one.end()
    (JOB / "step_0").rmdir()
    assert call(wired, "epilog").word == "released"


@pytest.mark.way_out(
    "a later step of a Slurm job, whose cgroup Slurm removed with all its limits after the one before",
    tier="kernel",
    outcome="made anew with the limit within a second; a task-prolog waits for it",
)
def test_a_directory_that_slurm_makes_anew_is_limited(
    wired: Wired, rig: Rig, job: Lease, eventually: Callable[[Callable[[], object]], None]
) -> None:
    """Between two steps Slurm removes it, and all limits with it."""
    region, size = rig.gpus[0].region, str(size_of(job))
    for _ in range(2):
        JOB.rmdir()
        eventually(lambda: JOB.exists() and limit(JOB, region) == size)


def test_a_limit_that_slurm_set_lower_stays(
    wired: Wired, rig: Rig, job: Lease, eventually: Callable[[Callable[[], object]], None]
) -> None:
    """Slurm 26.11 has limits of its own: the smaller wins, and the journal says whose it is."""
    region, lower = rig.gpus[0].region, size_of(job) // 2
    (JOB / "dmem.max").write_text(f"{region} {lower}\n")

    def owner() -> object:
        journal = wired.built.ledger.effects(job.id)
        return next((one.evidence or {}).get("owner") for one in journal if one.kind == "dmem")

    eventually(lambda: owner() == {region: "slurm"})
    assert limit(JOB, region) == str(lower)
    (JOB / "dmem.max").write_text(f"{region} max\n")
    eventually(lambda: limit(JOB, region) == str(size_of(job)))


def test_a_job_without_a_lease_gets_nothing(
    wired: Wired, rig: Rig, eventually: Callable[[Callable[[], object]], None]
) -> None:
    """What the closure closed is opened by the job's prolog, to its shard, and gone with its epilog."""
    region = rig.gpus[0].region
    JOB.mkdir()
    eventually(lambda: limit(JOB, region) == "0")
    assert call(wired, "prolog").word == "granted"
    lease = wired.built.ledger.leases(holder=(HolderKind.SLURM, "42"))[-1]
    assert limit(JOB, region) == str(size_of(lease))
    assert call(wired, "epilog").word == "released"
    eventually(lambda: limit(JOB, region) == "0")
    JOB.rmdir()
