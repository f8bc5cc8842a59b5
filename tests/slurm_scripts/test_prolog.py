"""The prolog, for each thing that an agent may answer, and for none, under each policy."""

from __future__ import annotations

import os

import pytest

from .conftest import EVERY_WAY, JOB, NOBODY, SHELLS, Site
from .played import PlayedAgent, closes, hangs, late, raw, restarts, says, seconds_given

pytestmark = pytest.mark.root
NO_ANSWER = {
    "closes": closes,
    "500": says("granted\nlease 7\n", status=500),
    "204": says("", status=204),
    "redirect": raw(b"HTTP/1.1 302 Found\r\nLocation: http://localhost/granted\r\nContent-Length: 0\r\n\r\n"),
    "garbage": raw(b"granted\nlease 7\n"),
    "another word": says("granted!\nlease 7\n"),
    "no word": says(""),
    "cut off": says("granted\nlease 7\n", length=1000),
    "huge": says("granted\n" + "x" * 5_000_000),
}


@EVERY_WAY
def test_a_granted_job_starts(site: Site, agent: PlayedAgent) -> None:
    """A job that got its lease starts, and nothing is left for its task-prolog but the lease."""
    agent.play("granted\nlease 7\n")
    assert site.prolog().code == 0
    assert [one.line for one in agent.asked] == ["POST /v1/slurm/prolog HTTP/1.1"]
    assert agent.asked[0].headers["content-type"] == "application/octet-stream"
    assert not site.path().exists()
    assert site.spooled == []


@pytest.mark.parametrize("shell", SHELLS)
def test_where_the_hook_is_is_left_for_roots_plugin(site: Site, agent: PlayedAgent) -> None:
    """A lease that has the hook says so to what sets up the tasks, until a run that has none."""
    agent.play("granted\nlease 7\nhook /run/hook/gpulease/7 /usr/lib/gpulease.so\n", "granted\nlease 8\n")
    assert site.prolog().code == 0
    left = site.path("hook", "42")
    assert left.read_text() == "/run/hook/gpulease/7 /usr/lib/gpulease.so\n"
    assert (left.stat().st_uid, left.stat().st_mode & 0o7777) == (0, 0o644)
    assert site.prolog().code == 0
    assert not left.exists()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("hook", ["/run/hook $(id)", "/a /b /c", "/run/hook /lib/a\tb"])
def test_a_hook_that_cannot_be_used_starts_no_job(site: Site, agent: PlayedAgent, hook: str) -> None:
    """No job starts as if it had a hook whose place the agent did not say."""
    agent.play(f"granted\nlease 7\nhook {hook}\n")
    assert site.prolog().code == 1
    assert not site.path("hook").exists()


@EVERY_WAY
def test_the_agent_learns_what_slurm_said(site: Site, agent: PlayedAgent) -> None:
    """The agent gets the job's variables, and when the script began; other variables stay where they are."""
    agent.play("granted\nlease 7\n")
    site.prolog(SECRET="of-another-plugin")
    fields = {name.decode(): value.decode() for name, value in agent.asked[0].fields.items()}
    assert float(fields.pop("GPULEASE_AT")) > 0
    assert fields == {name: value for name, value in JOB.items() if name != "SLURM_SCRIPT_CONTEXT"}


@EVERY_WAY
def test_a_refused_job_starts_with_a_verdict(site: Site, agent: PlayedAgent) -> None:
    """A request that cannot be met fails its job, by a verdict for the task-prolog, and no node."""
    agent.play("refused\nvram=9999G is more than 2 shards have\n")
    assert site.prolog().code == 0
    verdict = site.path("verdict", "42")
    assert verdict.read_text() == "vram=9999G is more than 2 shards have\n"
    assert (verdict.stat().st_uid, verdict.stat().st_mode & 0o7777) == (0, 0o644)
    assert (verdict.parent.stat().st_uid, verdict.parent.stat().st_mode & 0o7777) == (0, 0o711)
    assert [one.name for one in verdict.parent.iterdir()] == ["42"]


@EVERY_WAY
def test_a_fault_of_the_node_drains_it(site: Site, agent: PlayedAgent) -> None:
    """What the agent calls the node's fault ends the prolog at once with the reason, whatever the policy."""
    site.configure(on_agent_down="allow")
    agent.play("fault\nGPU 0 is not healthy\n")
    ended = site.prolog()
    assert (ended.code, ended.stderr) == (1, "gpulease: node fault: GPU 0 is not healthy\n")
    assert len(agent.asked) == 1
    assert site.spooled == []


@EVERY_WAY
def test_a_job_on_other_gpus_starts_without_a_lease(site: Site, agent: PlayedAgent) -> None:
    """A job whose GPUs the agent does not keep starts, and its task-prolog is told so."""
    agent.play("none\n\n")
    assert site.prolog().code == 0
    assert site.path("allowed", "42").read_text() == "\n"


@EVERY_WAY
def test_a_slice_that_is_owed_is_waited_for(site: Site, agent: PlayedAgent) -> None:
    """While the node owes capacity the agent is asked again, with the same body and less and less time."""
    agent.play("wait\nlease 6 is cleaning\n", "wait\nlease 6 is cleaning\n", "granted\nlease 7\n")
    assert site.prolog().code == 0
    assert len(agent.asked) == 3
    assert len({one.body for one in agent.asked}) == 1
    given = seconds_given(agent)
    assert given == sorted(given, reverse=True)
    assert 0 < given[-1] < given[0] <= 60


@EVERY_WAY
def test_a_slice_that_stays_owed_is_the_nodes_fault(site: Site, agent: PlayedAgent) -> None:
    """At the deadline a wait becomes the node's fault for the agent's reason, with nothing to undo."""
    site.configure(deadline=1)
    agent.play("wait\nlease 6 is cleaning\n")
    ended = site.prolog()
    assert (ended.code, ended.stderr) == (1, "gpulease: node fault: lease 6 is cleaning\n")
    assert site.spooled == []


@pytest.mark.parametrize("policy", ["drain", "fail", "allow"])
def test_a_wait_that_is_cut_off_stays_one(site: Site, agent: PlayedAgent, policy: str) -> None:
    """When the last try of a wait gets no answer, no policy lets the job run: there was no slice."""
    site.configure(deadline=3, on_agent_down=policy)
    agent.play("wait\nlease 6 is cleaning\n", hangs)
    ended = site.prolog()
    assert (ended.code, ended.stderr) == (1, "gpulease: node fault: lease 6 is cleaning\n")
    assert [one.read_bytes() for one in site.spooled] == [agent.asked[0].body]


@EVERY_WAY
@pytest.mark.parametrize("answer", [restarts, closes, says("later\n", status=503)])
def test_an_agent_that_comes_back_in_time_drains_nothing(
    site: Site, agent: PlayedAgent, answer: object
) -> None:
    """A restart in the middle of the call is no more than a second try."""
    agent.play(answer, "granted\nlease 7\n")
    ended = site.prolog()
    assert (ended.code, ended.stderr) == (0, "")
    assert len(agent.asked) == 2
    assert site.spooled == []


def test_a_slow_agent_is_waited_for(site: Site, agent: PlayedAgent) -> None:
    """An answer that comes late, but within the deadline, is an answer."""
    agent.play(late(2, "granted\nlease 7\n"))
    assert site.prolog().code == 0
    assert len(agent.asked) == 1


@pytest.mark.parametrize(("shell", "client"), [("dash", "curl"), ("bash", "ask.py")])
@pytest.mark.parametrize("answer", NO_ANSWER)
def test_only_a_whole_answer_counts(site: Site, agent: PlayedAgent, answer: str) -> None:
    """What is not a whole 200 answer with a known word is none: another try, then the policy."""
    site.configure(deadline=1)
    agent.play(NO_ANSWER[answer])
    ended = site.prolog()
    assert ended.code == 1
    assert ended.stderr.startswith("gpulease: node fault: no answer from the agent in 1 s (")
    assert ended.stderr.rstrip("\n").isprintable()
    assert [one.read_bytes() for one in site.spooled] == [agent.asked[0].body]


@pytest.mark.parametrize(("shell", "client"), [("busybox", "curl"), ("dash", "ask.py")])
@pytest.mark.parametrize(("policy", "code"), [("drain", 1), ("fail", 0), ("allow", 0)])
def test_the_policy_decides_without_an_agent(site: Site, agent: PlayedAgent, policy: str, code: int) -> None:
    """An agent that says nothing is given all the time in one call; then the site's policy decides."""
    site.configure(deadline=1, on_agent_down=policy)
    agent.play(hangs)
    assert site.prolog().code == code
    assert 0 < seconds_given(agent)[0] <= 1
    assert len(site.spooled) == 1
    left = [path.relative_to(site.path()) for path in site.path().rglob("42")]
    assert [str(path) for path in left] == {"drain": [], "fail": ["verdict/42"], "allow": ["allowed/42"]}[
        policy
    ]


@pytest.mark.parametrize(("policy", "code"), [("drain", 1), ("fail", 0), ("allow", 0)])
def test_the_policy_decides_without_a_socket(site: Site, policy: str, code: int) -> None:
    """The same where nobody listens, because the agent is stopped."""
    site.configure(deadline=1, on_agent_down=policy)
    ended = site.prolog()
    assert ended.code == code
    assert len(site.spooled) == 1
    if policy == "allow":
        assert "runs without limits" in site.path("allowed", "42").read_text()


def test_without_any_client_the_policy_decides(site: Site, agent: PlayedAgent) -> None:
    """A node with neither curl nor Python is one whose agent does not answer."""
    site.configure(deadline=1)
    site.edit("agent.sh", "/usr/bin/curl /bin/curl /usr/local/bin/curl", "/no/curl")
    site.edit("agent.sh", "/usr/bin/python3 /usr/libexec/platform-python", "/no/python3")
    ended = site.prolog()
    assert ended.code == 1
    assert "exit code of the client: 127" in ended.stderr


def test_what_an_earlier_run_left_is_forgotten(site: Site, agent: PlayedAgent) -> None:
    """A job that is started again under its number is not judged by its last run."""
    agent.play("refused\ntoo much\n", "granted\nlease 8\n")
    site.prolog()
    site.prolog(SLURM_JOB_RESTART_COUNT="1")
    assert not site.path("verdict", "42").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_job_without_gpus_is_let_through(site: Site, agent: PlayedAgent) -> None:
    """A job without GPUs starts, and nobody is asked."""
    agent.play("fault\nnever asked\n")
    environment = {name: value for name, value in JOB.items() if name != "SLURM_JOB_GPUS"}
    assert site.run("prolog", environment).code == 0
    assert site.prolog(SLURM_JOB_GPUS="").code == 0
    assert agent.asked == []


def test_an_answer_that_is_no_text_is_not_shown(site: Site, agent: PlayedAgent) -> None:
    """A reason with anything but printable ASCII, or a long one, reaches no log and no user."""
    for reason in ("\x1b[2Jowned", "gr\u00fc\u00dfe", "x" * 201):
        agent.play(f"fault\n{reason}\n")
        assert (
            site.prolog().stderr
            == "gpulease: node fault: (the reason cannot be shown: it is not plain text)\n"
        )


def test_a_wrong_setting_is_the_strict_one(site: Site) -> None:
    """What is not understood in the settings is named, and keeps its default."""
    site.configure(deadline=1)
    with site.settings.open("a") as settings:
        settings.write("on_agent_down=alow\ncolour=red\ndeadline=1 # second\nrun=$(id)\n# a comment\n\n")
    ended = site.prolog()
    assert ended.code == 1
    for name in ("on_agent_down", "colour", "deadline", "run"):
        assert f"not understood, and left at its default: {name}\n" in ended.stderr


@pytest.mark.parametrize("spoiled", ["writable", "owned", "linked"])
def test_settings_of_others_are_not_read(site: Site, spoiled: str) -> None:
    """Settings that somebody else owns, may write to or links to decide nothing."""
    site.edit("agent.sh", "deadline=8", "deadline=1")
    site.edit("agent.sh", "spool=/var/spool/nodeagent/slurm", f"spool={site.top}/spool")
    site.edit("agent.sh", "socket=/run/nodeagent/api.sock", f"socket={site.socket}")
    site.configure(on_agent_down="allow")
    if spoiled == "writable":
        site.settings.chmod(0o666)
    elif spoiled == "owned":
        os.chown(site.settings, NOBODY, 0)
    else:
        site.settings.rename(site.settings.with_name("elsewhere"))
        site.settings.symlink_to("elsewhere")
    ended = site.prolog()
    assert ended.code == 1
    assert "not read, since it is not root's" in ended.stderr


def test_a_stopped_agent_is_still_installed(site: Site) -> None:
    """An agent that took its socket's directory with it when it stopped opens no GPU: the policy decides."""
    site.configure(deadline=1)
    site.socket.parent.rmdir()
    ended = site.prolog()
    assert ended.code == 1
    assert "its directory is missing" in ended.stderr


def test_a_node_without_the_agent_is_left_alone(site: Site) -> None:
    """Where neither the settings' directory nor the socket's is there, GPU jobs start as if we were not."""
    site.edit("agent.sh", "socket=/run/nodeagent/api.sock", f"socket={site.top}/none/api.sock")
    site.settings.unlink()
    site.settings.parent.rmdir()
    for ended in (site.prolog(), site.epilog(), site.task()):
        assert (ended.code, ended.stdout, ended.stderr) == (0, "", "")
