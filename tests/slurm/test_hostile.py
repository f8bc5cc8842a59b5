"""Users who want more than they asked for, or another's: docs/threats.md, rows 2, 3, 10, 14 and 15."""

from __future__ import annotations

import shutil

import pytest

from .lab import Lab
from .versions import FIELD

pytestmark = pytest.mark.slurm
LEASES_OWN = ("GPULEASE_ID", "HSA_CU_MASK", "ROCR_VISIBLE_DEVICES")
FORGED = {
    "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7",
    "SLURM_STEP_GPUS": "0,1,2,3,4,5,6,7",
    "SLURM_SHARDS_ON_NODE": "8",
    "SLURM_JOB_COMMENT": "gpulease:gpus",
    "SLURM_JOB_EXTRA": "gpulease:shards=8",
    "ROCR_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
    "HSA_CU_MASK": "0:0-303",
    "GPULEASE_ID": "1",
    "GPULEASE_SOCKET": "/tmp/mine",
}
COMMENTS = (
    "@/etc/shadow",
    "gpulease:gpus",
    "gpulease:shards=8",
    "gpulease:shards=8;gpulease:shards=1",
    "x\ngpulease:gpus",
    "x\nexport LD_PRELOAD=/tmp/evil.so",
    '","uid":0,"x":"',
    "$(touch {file})`touch {file}`;touch {file}",
    "\x1b]0;title\x07\x1b[31m",
    "%s%n%x" * 40,
    "\u202etxet idib \U0001f600\x80",
    "a" * 1000,
)


def slurm_fields(job: str, at: str) -> dict[str, str]:
    """What a prolog or an epilog of a job of alice's says."""
    who = {"SLURM_JOB_ID": job, "SLURM_JOB_UID": "61001", "SLURM_JOB_GID": "61001"}
    return {**who, "SLURM_JOB_GPUS": "0", "SLURMD_NODENAME": "gpu0", "GPULEASE_AT": at}


def test_forged_variables_change_nothing(lab: Lab) -> None:
    """A job that sets the variables of Slurm or of a lease itself has no other slice, and the right ones."""
    honest = lab.hold("--gres=shard:2")
    forged = lab.hold("--gres=shard:2", env=FORGED)
    leases = [lab.agent.lease(task.job) for task in (honest, forged)]
    assert leases[0] and leases[1]
    (one,), (other,) = (lease["slices"] for lease in leases)
    assert (one["cu_count"], one["vram_bytes"]) == (other["cu_count"], other["vram_bytes"])
    assert {name: forged.environment[name] for name in LEASES_OWN} == {
        name: leases[1]["environment"][name] for name in LEASES_OWN
    }
    assert forged.cgroup == leases[1]["cgroup"]


@pytest.mark.parametrize("shell", ["BASH_ENV", "ENV"])
def test_shell_startup_files_do_not_stop_the_task_prolog(lab: Lab, shell: str) -> None:
    """A start-up file of the user's that ends every shell leaves the task its lease and variables."""
    startup = lab.public("exit 0\n")
    task = lab.run("--gres=shard:2", env={shell: str(startup)})
    assert task.environment["GPULEASE_ID"]
    assert "gpulease" in task.cgroup


def test_shell_functions_do_not_replace_what_the_task_prolog_calls(lab: Lab) -> None:
    """Functions that bash would take from the environment are not the task-prolog's."""
    functions = {f"BASH_FUNC_{name}%%": "() { exit 0; }" for name in ("read", "printf", "[", "unset", "exec")}
    task = lab.run("--gres=shard:2", env=functions)
    assert "gpulease" in task.cgroup


def test_a_task_prolog_of_the_users_own_leaves_the_task_in_its_lease(lab: Lab) -> None:
    """It can take variables away, which are for convenience, and nothing else: docs/enforcement.md."""
    script = lab.public("#!/bin/sh\necho unset HSA_CU_MASK\necho unset LD_PRELOAD\n")
    task = lab.run("--gres=shard:2", f"--task-prolog={script}")
    assert "HSA_CU_MASK" not in task.environment
    assert task.cgroup.endswith(f"-{task.environment['GPULEASE_ID']}.slice")


def test_a_comment_is_only_text(lab: Lab) -> None:
    """Whatever a comment says, the job gets the shards that it asked for, and nothing of it is executed."""
    made = lab.file()
    texts = [text.replace("{file}", str(made)) for text in COMMENTS]
    tasks = {text: lab.hold("--gres=shard:2", f"--{FIELD}={text}") for text in ("", *texts)}
    parts = {text: lab.agent.lease(task.job)["slices"] for text, task in tasks.items()}
    got = {text: [(part["vram_bytes"], part["cu_count"]) for part in found] for text, found in parts.items()}
    assert got == dict.fromkeys(got, got[""])
    assert not made.exists()
    assert not any("LD_PRELOAD" in task.environment for task in tasks.values())


def test_a_job_cannot_enter_another_jobs_lease(lab: Lab) -> None:
    """A task that names another job gets its own lease, or none."""
    victim = lab.hold("--gres=shard:2", user="bob")
    ask = lab.public(
        "#!/bin/sh\n"
        "printf 'SLURM_JOB_ID=%s\\0' \"$1\" | curl -qs --unix-socket /run/nodeagent/api.sock --data-binary @-"
        " -H 'Content-Type: application/octet-stream' http://localhost/v1/slurm/task >$2.new; mv $2.new $2\n"
    )
    file = lab.file()
    lab.cluster.srun("--gres=shard:1", str(ask), victim.job, str(file), user="alice")
    lease = lab.agent.lease(victim.job)
    assert lease is not None
    assert f"GPULEASE_ID={lease['id']}" not in file.read_text()


def test_a_job_cannot_leave_its_lease_for_a_look_alike(lab: Lab) -> None:
    """A task whose user has a cgroup of the same name elsewhere cannot go there: it stays in its lease's."""
    lab.run("--gres=shard:1")  # an agent that was started again goes on with higher ids
    below = lab.agent.slice.parent / "alices"
    twin = below / f"{lab.agent.slice.stem}-{lab.agent.last_id() + 1}.slice"
    twin.mkdir(parents=True)
    for path in (below, twin, twin / "cgroup.procs", below / "cgroup.procs"):
        shutil.chown(path, 61001)
    program = lab.public(f"#!/bin/sh\necho $$ >{twin}/cgroup.procs\nexec {lab.show} $1\n")
    file = lab.file()
    lab.cluster.srun("--gres=shard:2", str(program), str(file))
    task = lab.task(file)
    twin.rmdir()
    below.rmdir()
    assert task.cgroup == f"/{lab.agent.slice.name}/{twin.name}"


def test_scripts_calls_are_roots_alone(lab: Lab) -> None:
    """A user who calls prolog or epilog for another's job is refused."""
    victim = lab.hold("--gres=shard:2", user="bob")
    for call in ("prolog", "epilog"):
        said = lab.agent.raw(call, slurm_fields(victim.job, "9999999.00"), user="alice")
        assert "403" in said
    assert lab.agent.lease(victim.job)


def test_a_late_epilog_spares_a_later_run(lab: Lab) -> None:
    """An epilog that began before the job's lease was made, as of an earlier run, ends nothing."""
    task = lab.hold("--gres=shard:2")
    said = lab.agent.raw("epilog", slurm_fields(task.job, "1.00"))
    assert said.startswith("none\n")
    assert lab.agent.lease(task.job)


@pytest.mark.parametrize("job", ["../../../etc", "1/../2", "1\n2", "-1", "99999999999", "0x10", ""])
def test_a_crafted_job_id_is_refused(lab: Lab, job: str) -> None:
    """An id that is no number makes no cgroup and no lease."""
    said = lab.agent.raw("prolog", slurm_fields(job, "1.00"))
    assert not said.startswith("granted")
