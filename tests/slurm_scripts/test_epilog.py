"""The epilog: what it takes for an end, and what it leaves when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import EVERY_WAY, JOB, SHELLS, Site
from .played import PlayedAgent, hangs, restarts, says

pytestmark = pytest.mark.root
NO_GPUS = {name: value for name, value in JOB.items() if name != "SLURM_JOB_GPUS"}


@EVERY_WAY
@pytest.mark.parametrize("word", ["released", "none", "quarantined"])
def test_an_end_is_an_end(site: Site, agent: PlayedAgent, word: str) -> None:
    """A released, an unknown and a quarantined slice are all no trouble of Slurm's."""
    site.configure(epilog_trouble="drain")
    agent.play(f"{word}\nlease 7\n")
    ended = site.epilog()
    assert (ended.code, ended.stderr) == (0, "")
    assert [one.line for one in agent.asked] == ["POST /v1/slurm/epilog HTTP/1.1"]
    assert agent.asked[0].fields[b"SLURM_JOB_ID"] == b"42"
    assert float(agent.asked[0].fields[b"GPULEASE_AT"]) > 0
    assert site.spooled == []


@EVERY_WAY
def test_the_proof_is_waited_for(site: Site, agent: PlayedAgent) -> None:
    """While the slice is not proved clean the agent is asked again, beyond the deadline of other calls."""
    site.configure(deadline=9, epilog_wait=60)
    agent.play("releasing\nlease 7\n", "releasing\nlease 7\n", "released\nlease 7\n")
    assert site.epilog().code == 0
    assert len(agent.asked) == 3
    assert agent.asked[1].seconds > 9


@pytest.mark.parametrize(("policy", "code"), [("ignore", 0), ("drain", 1)])
def test_a_proof_that_does_not_come(site: Site, agent: PlayedAgent, policy: str, code: int) -> None:
    """At the end of its wait the epilog leaves the slice to the agent; it drains the node only if told to."""
    site.configure(epilog_wait=1, epilog_trouble=policy)
    agent.play("releasing\n4 GiB are still in use\n")
    ended = site.epilog()
    assert ended.code == code
    assert "not proved clean after 1 s" in ended.stderr
    assert "4 GiB are still in use" in ended.stderr
    assert site.spooled == []


@EVERY_WAY
@pytest.mark.parametrize(("policy", "code"), [("ignore", 0), ("drain", 1)])
def test_a_release_that_nobody_heard_is_kept(site: Site, agent: PlayedAgent, policy: str, code: int) -> None:
    """An epilog without an answer leaves its call for the agent, and drains the node only if told to."""
    site.configure(deadline=1, epilog_trouble=policy)
    agent.play(says("", status=500), hangs)
    ended = site.epilog()
    assert ended.code == code
    assert "no answer from the agent" in ended.stderr
    (kept,) = site.spooled
    assert kept.read_bytes() == agent.asked[0].body
    kind, job, rest = kept.name.split("-", 2)
    boot, at = rest.rsplit("-", 1)
    assert (kind, job, at) == ("epilog", "42", agent.asked[0].fields[b"GPULEASE_AT"].decode())
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert (kept.stat().st_uid, kept.stat().st_mode & 0o7777) == (0, 0o600)
    assert (kept.parent.stat().st_uid, kept.parent.stat().st_mode & 0o7777) == (0, 0o700)


def test_an_agent_that_restarts_is_asked_again(site: Site, agent: PlayedAgent) -> None:
    """A restart in the middle loses no release."""
    agent.play(restarts, "released\nlease 7\n")
    assert site.epilog().code == 0
    assert len(agent.asked) == 2
    assert site.spooled == []


@pytest.mark.parametrize("shell", SHELLS)
def test_a_job_without_gpus_is_none_of_ours(site: Site, agent: PlayedAgent) -> None:
    """The epilog of a job without GPUs asks nobody."""
    agent.play("released\nlease 7\n")
    ended = site.run("epilog", NO_GPUS)
    assert (ended.code, ended.stderr) == (0, "")
    assert agent.asked == []


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("left", ["verdict", "allowed"])
def test_what_the_prolog_left_goes(site: Site, agent: PlayedAgent, left: str) -> None:
    """A job's verdict or note is removed, and what has one is released, GPUs or not."""
    agent.play("none\n\n")
    site.path(left).mkdir(parents=True)
    site.path(left, "42").touch()
    site.path(left, "421").touch()
    assert site.run("epilog", NO_GPUS).code == 0
    assert [path.name for path in site.path(left).iterdir()] == ["421"]
    assert len(agent.asked) == 1


def test_a_call_in_the_spool_is_followed_up(site: Site, agent: PlayedAgent) -> None:
    """A job whose prolog got no answer is released, even if Slurm says nothing of its GPUs any more."""
    agent.play("none\n\n")
    (site.top / "spool").mkdir()
    (site.top / "spool" / "prolog-421-boot-1.00").touch()
    assert site.run("epilog", NO_GPUS).code == 0
    assert agent.asked == []
    (site.top / "spool" / "prolog-42-boot-1.00").touch()
    assert site.run("epilog", NO_GPUS).code == 0
    assert len(agent.asked) == 1
