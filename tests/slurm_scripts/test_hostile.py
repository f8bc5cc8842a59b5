"""Root's two scripts against what users write, plant and break."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import EVERY_WAY, JOB, NOBODY, SHELLS, TASK, Site
from .played import PlayedAgent, hangs

pytestmark = pytest.mark.root
EVERY_SHELL = pytest.mark.parametrize("shell", SHELLS)
SCRIPTS = pytest.mark.parametrize("script", ["prolog", "epilog"])
TEXTS = {
    "a file's name": b"@/etc/shadow",
    "expansions": b"$(touch EVIL) `touch EVIL` ${PATH} $((1/0)) ~root *",
    "quotes": b"'\"\\'; touch EVIL; \"",
    "lines": b"gpulease:shards=8\nSLURM_JOB_UID=0\n\nrefused\n\n",
    "a format": b"%s%n%d\\0\\n\\c",
    "options": b"-K/etc/shadow --upload-file /etc/shadow",
    "every byte": bytes(range(1, 256)),
    "no UTF-8": b"\xff\xfe\x80\xc3\x28",
    "escapes": b"\x1b]0;owned\x07\x1b[2J",
}


@EVERY_WAY
@SCRIPTS
@pytest.mark.parametrize("text", TEXTS)
def test_a_users_text_is_bytes(site: Site, agent: PlayedAgent, script: str, text: str) -> None:
    """What a user wrote arrives byte for byte, in no argument and no environment, and nothing acts on it."""
    evil = site.top / "it-ran"
    written = TEXTS[text].replace(b"EVIL", bytes(evil))
    agent.play("none\n\n")
    ended = site.run(script, JOB | {"SLURM_JOB_COMMENT": written, "SLURM_JOB_EXTRA": written}, uid=None)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "", "")
    (asked,) = agent.asked
    assert asked.fields[b"SLURM_JOB_COMMENT"] == asked.fields[b"SLURM_JOB_EXTRA"] == written
    assert asked.fields[b"SLURM_JOB_UID"] == b"1001"
    assert not [one for one in asked.command if written in one]
    assert written not in asked.environment
    assert not evil.exists()
    assert not any(b"root:" in one for one in asked.fields.values())


@EVERY_SHELL
@SCRIPTS
def test_no_length_of_a_text_is_too_long(site: Site, agent: PlayedAgent, script: str) -> None:
    """A comment of any length is cut: more than the agent takes would drain the node."""
    agent.play("none\n\n")
    long = b"gpulease:shards=2 " + b"x" * 100_000
    assert site.run(script, JOB | {"SLURM_JOB_COMMENT": long, "SLURM_JOB_EXTRA": long}).code == 0
    assert agent.asked[0].fields[b"SLURM_JOB_COMMENT"] == long[:4096]
    assert len(agent.asked[0].body) < 16384


@EVERY_SHELL
@SCRIPTS
@pytest.mark.parametrize("number", ["../../etc/x", "", "42;id", "42\n"])
def test_a_job_number_is_a_number(site: Site, agent: PlayedAgent, script: str, number: str) -> None:
    """No path, file or call is made of a job number that is none."""
    agent.play("refused\nno\n")
    ended = site.run(script, JOB | {"SLURM_JOB_ID": number})
    assert ended.code == 1
    assert "SLURM_JOB_ID is not a number" in ended.stderr
    assert agent.asked == []


@EVERY_SHELL
def test_a_planted_link_is_not_followed(site: Site, agent: PlayedAgent) -> None:
    """A link in the place of a verdict, or of its directory, leads root's pen nowhere."""
    agent.play("refused\ntoo much\n")
    target = site.top / "target"
    target.write_text("as it was\n")
    site.path("verdict").mkdir(parents=True)
    site.path("verdict", "42").symlink_to(target)
    assert site.prolog().code == 0
    assert not site.path("verdict", "42").is_symlink()
    shutil.rmtree(site.path("verdict"))
    elsewhere = site.top / "elsewhere"
    elsewhere.mkdir()
    site.path("verdict").symlink_to(elsewhere)
    assert site.prolog().code == 1
    assert target.read_text() == "as it was\n"
    assert list(elsewhere.iterdir()) == []


@EVERY_SHELL
@pytest.mark.parametrize("spoiled", ["owned", "writable"])
def test_nothing_is_left_where_others_may_write(site: Site, agent: PlayedAgent, spoiled: str) -> None:
    """In a directory that somebody else owns or may write to, root writes neither verdicts nor calls."""
    site.configure(deadline=1)
    for directory in (site.path(), site.top / "spool"):
        directory.mkdir(parents=True)
        if spoiled == "owned":
            os.chown(directory, NOBODY, NOBODY)
        else:
            directory.chmod(0o777)
    agent.play("refused\ntoo much\n", hangs)
    refused, unheard = site.prolog(), site.epilog()
    assert (refused.code, unheard.code) == (1, 0)
    assert "cannot be written" in refused.stderr
    assert "cannot be kept" in unheard.stderr
    assert list(site.path().iterdir()) == site.spooled == []


@EVERY_WAY
def test_a_socket_in_another_users_directory_is_not_spoken_to(site: Site, agent: PlayedAgent) -> None:
    """Root tells nothing to a server that a user could have put there, and takes no answer from it."""
    site.configure(deadline=1)
    agent.play("granted\nlease 7\n")
    os.chown(site.socket.parent, NOBODY, NOBODY)
    ended = site.prolog()
    assert ended.code == 1
    assert "not root's alone" in ended.stderr
    assert agent.asked == []


@EVERY_SHELL
@SCRIPTS
def test_a_call_in_the_spool_is_whole_or_absent(
    site: Site, agent: PlayedAgent, script: str, until: Callable[[Callable[[], object]], None]
) -> None:
    """Killed in the middle of writing, a script leaves nothing that the agent takes for a call."""
    site.configure(deadline=1)
    agent.vanish()
    site.socket.parent.rename(site.top / "away")  # without it, the slow body below is not sent
    site.edit("records.sh", "        field GPULEASE_AT", "        /bin/sleep 100 && field GPULEASE_AT")
    with site.start(script, JOB) as started:
        until(lambda: [one for one in site.spooled if one.name.startswith(".") and one.stat().st_size])
        os.killpg(started.pid, signal.SIGKILL)
        started.communicate(timeout=60)
    (left,) = site.spooled
    assert left.name.startswith(f".{script}-42-")
    assert stat.S_IMODE(left.stat().st_mode) == 0o600


@EVERY_SHELL
def test_a_full_disk(site: Site, agent: PlayedAgent) -> None:
    """Where nothing can be written a refused job is not let through, and no epilog drains the node."""
    site.configure(deadline=1)
    agent.play("refused\ntoo much\n", hangs)

    def run(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [site.scripts / script],
            env=JOB,
            capture_output=True,
            text=True,
            check=False,
            restore_signals=False,  # SIGXFSZ stays ignored, as here: a write fails as on a full disk
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        )

    refused, unheard = run("prolog"), run("epilog")
    assert (refused.returncode, unheard.returncode) == (1, 0)
    assert "cannot be written" in refused.stderr
    assert "cannot be kept" in unheard.stderr
    assert [path for path in site.path().rglob("*") if path.is_file()] == []
    assert site.spooled == []


@EVERY_WAY
@SCRIPTS
def test_slurms_own_timeout_leaves_nothing_running(
    site: Site, agent: PlayedAgent, script: str, until: Callable[[Callable[[], object]], None]
) -> None:
    """Ended with its group, as slurmd does at PrologEpilogTimeout, a script leaves no client behind."""
    site.configure(deadline=99)
    agent.play(hangs)
    with site.start(script, JOB) as started:
        until(lambda: agent.asked)
        os.killpg(started.pid, signal.SIGTERM)
        started.communicate(timeout=60)  # to the end of its output: nobody holds it open
    assert started.returncode == -signal.SIGTERM


@EVERY_SHELL
@pytest.mark.parametrize("script", ["prolog", "epilog", "task-prolog"])
def test_who_has_no_gpus_connects_to_nobody(site: Site, script: str) -> None:
    """A job without GPUs, or a node without the agent, costs no connection and hardly a process."""
    strace = Path("/usr/bin/strace")
    if not strace.exists():
        pytest.skip("needs strace")
    trace = site.top / "trace"
    given = TASK if script == "task-prolog" else JOB
    without = {name: value for name, value in given.items() if "GPUS" not in name}
    for node_has_agent, environment in ((True, without), (False, given)):
        if not node_has_agent:
            site.edit("agent.sh", "socket=/run/nodeagent/api.sock", f"socket={site.top}/none/api.sock")
            shutil.rmtree(site.settings.parent)
        ran = subprocess.run(
            [strace, "-f", "-qq", "-e", "trace=connect,execve", "-o", trace, site.scripts / script],
            env=environment,
            check=False,
            capture_output=True,
        )
        calls = [line for line in trace.read_text().splitlines() if line.rstrip().endswith("= 0")]
        assert ran.returncode == 0
        assert not [call for call in calls if " connect(" in call]
        assert len([call for call in calls if " execve(" in call]) <= 2
