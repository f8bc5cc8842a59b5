"""The task-prolog: what it hands to a task, when it makes one fail, and that no environment sways it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.domain import environment as lease_environment

from .conftest import EVERY_WAY, NOBODY, SHELLS, Site
from .played import PlayedAgent, closes, hangs, says

pytestmark = pytest.mark.root
EVERY_SHELL = pytest.mark.parametrize("shell", SHELLS)
EXPORTS = (
    "print gpulease: lease 7: 76 CUs, 48 GiB\n"
    "export ROCR_VISIBLE_DEVICES=0\n"
    "export HSA_CU_MASK=0:0-75\n"
    "export LD_PRELOAD=/usr/lib/gpulease.so:/home/bob/lib.so\n"
    "unset CUDA_VISIBLE_DEVICES\n"
)
VARIABLES = ("settings", "socket", "deadline", "run", "here", "job", "answer", "accepted", "asked", "end")
# What a user may put into the environment of a task, which is that of the task-prolog too.
HOSTILE: dict[str, dict[str, str]] = {
    "BASH_ENV": {"BASH_ENV": "EVIL"},
    "ENV": {"ENV": "EVIL"},
    "a path of programs": {"PATH": "EVIL_DIRECTORY"},
    "no path": {"PATH": ""},
    "IFS": {"IFS": "/.0123456789="},
    "functions": {
        f"BASH_FUNC_{name}%%": "() { exit 0; }"
        for name in ("read", "printf", "[", "unset", "exec", "set", ".", "is_number", "ask", "/usr/bin/find")
    },
    "tracing": {"SHELLOPTS": "xtrace", "PS4": "$(echo export EVIL=1)"},
    "stops at errors": {"SHELLOPTS": "errexit:nounset:noglob"},
    "a claim to be bash": {"BASH_VERSION": "5.2.15(1)-release"},
    "variables of the script's": dict.fromkeys(VARIABLES, "EVIL"),
    "libraries": {"LD_LIBRARY_PATH": "EVIL_DIRECTORY"},
    "a proxy": {
        "http_proxy": "http://127.0.0.1:1",
        "ALL_PROXY": "http://127.0.0.1:1",
        "CURL_HOME": "EVIL_DIRECTORY",
    },
    "python": {"PYTHONPATH": "EVIL_DIRECTORY", "PYTHONSTARTUP": "EVIL", "PYTHONHOME": "EVIL_DIRECTORY"},
    "a language": {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"},
    "other GPUs": {"SLURM_JOB_GPUS": "7", "SLURM_SHARDS_ON_NODE": "8", "ROCR_VISIBLE_DEVICES": "7"},
    "no GPUs": {"SLURM_JOB_GPUS": ""},
    "odd numbers": {"SLURM_HET_JOB_ID": "$(id)", "SLURM_TASK_PID": "1; id"},
}


@EVERY_WAY
def test_a_task_gets_the_leases_variables(site: Site, agent: PlayedAgent) -> None:
    """The agent's lines are printed for Slurm as they came."""
    agent.play(EXPORTS)
    ended = site.task()
    assert (ended.code, ended.stdout) == (0, EXPORTS)
    assert [one.line for one in agent.asked] == ["POST /v1/slurm/task HTTP/1.1"]
    assert agent.asked[0].fields == {
        b"SLURM_JOB_ID": b"42",
        b"SLURM_STEP_GPUS": b"0",
        b"SLURM_TASK_PID": b"4711",
    }


@EVERY_WAY
def test_a_task_of_an_unmasked_lease_gets_less(site: Site, agent: PlayedAgent) -> None:
    """A value may be empty, and an answer a single line without its end."""
    agent.play("export HIP_VISIBLE_DEVICES=")
    ended = site.task()
    assert (ended.code, ended.stdout) == (0, "export HIP_VISIBLE_DEVICES=\n")


def test_a_lease_of_many_gpus_is_told_in_full(site: Site, agent: PlayedAgent) -> None:
    """A line for the user may be as long as a lease of 63 partitions makes it."""
    line = f"print gpulease: lease 7: {', '.join(f'0000:c1:00.0/{n} 38 CUs 23 GiB' for n in range(63))}\n"
    agent.play(line)
    assert site.task().stdout == line


@EVERY_SHELL
def test_the_masks_of_several_gpus_pass(site: Site, agent: PlayedAgent) -> None:
    """A mask may name several GPUs; the semicolons between them are of no other value."""
    agent.play("export HSA_CU_MASK=0:0-31,64-95;1:0-31\n", "export GPULEASE_ID=7;id\n")
    assert site.task().stdout == "export HSA_CU_MASK=0:0-31,64-95;1:0-31\n"
    assert site.task().code == 1


@EVERY_SHELL
def test_the_users_preloads_are_kept(site: Site, agent: PlayedAgent) -> None:
    """The agent learns what the task preloads, unless Slurm or a shell could act on it."""
    agent.play(EXPORTS)
    site.task(LD_PRELOAD="libc.so.6:libm.so.6")
    site.task(LD_PRELOAD="libc.so.6 $(id)")
    assert [one.fields.get(b"LD_PRELOAD") for one in agent.asked] == [b"libc.so.6:libm.so.6", None]


@EVERY_SHELL
def test_a_refused_jobs_tasks_fail(site: Site, agent: PlayedAgent) -> None:
    """A verdict is printed to the user, and its task fails without the agent."""
    site.path("verdict").mkdir(parents=True, mode=0o711)
    site.path("verdict", "42").write_text("vram=9999G is more than 2 shards have\n")
    ended = site.task()
    assert ended.code == 1
    assert ended.stdout == "print gpulease: vram=9999G is more than 2 shards have\n"
    assert agent.asked == []
    site.path("verdict", "42").write_text("")
    assert site.task().stdout == "print gpulease: refused\n"


@EVERY_SHELL
def test_a_job_without_a_lease_is_told_so(site: Site, agent: PlayedAgent) -> None:
    """What the prolog let through without a lease starts; a note of the prolog's is for the user to see."""
    site.path("allowed").mkdir(parents=True, mode=0o711)
    site.path("allowed", "42").write_text("no answer from the agent: this job runs without limits\n")
    ended = site.task()
    assert ended.code == 0
    assert ended.stdout == "print gpulease: no answer from the agent: this job runs without limits\n"
    site.path("allowed", "42").write_text("\n")
    ended = site.task()
    assert (ended.code, ended.stdout) == (0, "")
    assert agent.asked == []


@EVERY_WAY
@pytest.mark.parametrize(("policy", "code"), [("drain", 1), ("fail", 1), ("allow", 0)])
def test_a_task_without_its_lease(site: Site, agent: PlayedAgent, policy: str, code: int) -> None:
    """Where the agent knows no lease of a job with GPUs, only a site that allows it lets its tasks run."""
    site.configure(on_agent_down=policy)
    agent.play("none\n")
    ended = site.task()
    assert ended.code == code
    assert ended.stdout.startswith("print gpulease: the agent has no lease of this job")
    assert ended.stdout.count("\n") == 1


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize("answer", [hangs, closes, says(EXPORTS, status=500), says(EXPORTS, length=4000)])
@pytest.mark.parametrize(("policy", "code"), [("fail", 1), ("allow", 0)])
def test_a_task_without_an_answer(
    site: Site, agent: PlayedAgent, answer: object, policy: str, code: int
) -> None:
    """The same where the agent does not answer, or not to the end; part of an answer sets no variable."""
    site.configure(deadline=1, on_agent_down=policy)
    agent.play(answer)
    ended = site.task()
    assert ended.code == code
    assert ended.stdout.startswith("print gpulease: no answer from the agent in 1 s (")
    assert ended.stdout.count("\n") == 1


@EVERY_SHELL
@pytest.mark.parametrize(
    "line",
    [
        "export LD_PRELOAD=$(id)",
        "export HSA_CU_MASK=0:0-75 export LD_PRELOAD=/tmp/evil.so",
        "export ROCR_VISIBLE_DEVICES=`id`",
        "export HSA_CU_MASK=0:0-31;$(id)",
        "export GPULEASE_ID=\x1b[2J",
        "export GPULEASE_ID=\u0131",
        "export GPULEASE_ID=7\rexport PATH=/tmp",
        "unset GPULEASE_ID=7",
        "unset HSA_CU_MASK PATH",
        "print \x1b]0;owned\x07",
        "rm -rf /",
        " export GPULEASE_ID=7",
        "export",
    ],
)
def test_a_hostile_line_spoils_its_answer(site: Site, agent: PlayedAgent, line: str) -> None:
    """An answer with a line that nobody should act on is used in no part, and its task fails."""
    site.configure(on_agent_down="allow")
    agent.play(f"{EXPORTS}{line}\n")
    ended = site.task()
    assert ended.code == 1
    assert ended.stdout == "print gpulease: the agent's answer is not one: nothing of it is used\n"


@EVERY_SHELL
@pytest.mark.parametrize("line", ["export PATH=/tmp/evil", "export BASH_ENV=/tmp/evil", "unset HOME"])
def test_a_strange_name_is_passed_over(site: Site, agent: PlayedAgent, line: str) -> None:
    """No variable but the lease's own is set or unset, whoever answers."""
    agent.play(f"{line}\n{EXPORTS}")
    ended = site.task()
    assert (ended.code, ended.stdout) == (0, EXPORTS)


def test_every_variable_of_a_lease_passes(site: Site, agent: PlayedAgent) -> None:
    """Each variable that the agent sets or unsets is one that the task-prolog lets through."""
    names = {"GPU_MAX_HW_QUEUES", "GPULEASE_ID", "GPULEASE_VRAM_BYTES", "GPULEASE_DEVICES", "LD_PRELOAD"}
    names |= {"ROCR_VISIBLE_DEVICES", "HSA_CU_MASK", "GPULEASE_HOOK", *lease_environment._UNSET}
    lines = "".join(f"export {name}=1\nunset {name}\n" for name in sorted(names))
    agent.play(lines)
    assert site.task().stdout == lines


@EVERY_WAY
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_users_environment_sways_nothing(site: Site, agent: PlayedAgent, kind: str) -> None:
    """Whatever the environment holds, the task gets the lease's variables and nothing else runs."""
    evil = site.top / "evil"
    evil.mkdir()
    evil.chmod(0o777)
    (evil / "run").write_text(f"#!/bin/sh\n: >{evil}/it-ran\nexit 0\n")
    (evil / ".curlrc").write_text(f'output = "{evil}/it-ran"\n')
    (evil / "libselinux.so.1").write_text("of another release, which find cannot load\n")
    (evil / "http.py").write_text(f"open({str(evil / 'it-ran')!r}, 'w')\n")
    for program in ("curl", "find", "env", "head", "sleep", "sh", "printf"):
        (evil / program).symlink_to("run")
    (evil / "run").chmod(0o755)
    agent.play(EXPORTS)
    given = {
        name: value.replace("EVIL_DIRECTORY", str(evil)).replace("EVIL", str(evil / "run"))
        for name, value in HOSTILE[kind].items()
    }
    ended = site.task(**given)
    assert (ended.code, ended.stdout) == (0, EXPORTS)
    assert not (evil / "it-ran").exists()
    assert agent.asked[0].fields == {b"SLURM_JOB_ID": b"42", b"SLURM_STEP_GPUS": b"0"} | (
        {} if "SLURM_TASK_PID" in given else {b"SLURM_TASK_PID": b"4711"}
    )
    assert set(agent.asked[0].environment.split(b"\0")) <= {b"", b"LC_CTYPE=C.UTF-8"}


@EVERY_SHELL
def test_a_forged_job_number_names_no_file(site: Site, agent: PlayedAgent) -> None:
    """A job number that is a path reads no file, and reaches neither the agent nor the screen."""
    (site.top / "run" / "x").write_text("secret of root's\n")
    site.path("verdict").mkdir(parents=True)
    site.path("allowed").mkdir(parents=True)
    agent.play(EXPORTS)
    for forged in ("../../x", "/etc/passwd", "", "42\n43", "*", "4 2"):
        ended = site.task(SLURM_JOB_ID=forged)
        assert (ended.code, ended.stdout) == (0, EXPORTS)
        assert b"SLURM_JOB_ID" not in agent.asked[-1].fields


def test_the_title_of_its_parent_tells_the_job(site: Site, agent: PlayedAgent) -> None:
    """The task is a fork of slurmstepd, whose title has the number: a component's variable names another."""
    title = site.top / "title"
    site.edit("task-prolog", "/proc/$PPID/cmdline", str(title))
    agent.play(EXPORTS)
    for text, job in (
        (b"slurmstepd: [43.0]\0\0", b"43"),
        (b"slurmstepd: [44.batch]\0", b"44"),
        (b"slurmstepd: [../x.0]\0", b"42"),
        (b"/usr/bin/bash\0slurmstepd: [45.0]\0", b"42"),
    ):
        title.write_bytes(text)
        site.task()
        assert agent.asked[-1].fields[b"SLURM_JOB_ID"] == job


@EVERY_SHELL
def test_a_task_without_gpus_is_let_through(site: Site, agent: PlayedAgent) -> None:
    """A task of a job without GPUs starts, and nobody is asked."""
    agent.play("none\n")
    ended = site.run("task-prolog", {"SLURM_JOB_ID": "42", "PATH": "/usr/bin"}, uid=NOBODY)
    assert (ended.code, ended.stdout) == (0, "")
    assert agent.asked == []


def test_the_agent_sees_the_task_above_its_caller(site: Site, agent: PlayedAgent) -> None:
    """The process that asks has the task among its ancestors, so that the agent can find it for itself."""
    chain: list[int] = []

    def look(played: PlayedAgent, connection: object) -> None:
        pid = played.asked[-1].pid
        while pid > 1 and pid != os.getpid():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
            chain.append(pid)
        says(EXPORTS)(played, connection)

    agent.play(look)
    assert site.task().code == 0
    assert chain[-1] == os.getpid()
    assert len(chain) <= 8
