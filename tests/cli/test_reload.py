"""What a reload reads, compares, tells and refuses, without an agent that serves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nodeagent import config, wiring
from nodeagent.adapters.news import News
from nodeagent.adapters.sole import holder, sole
from nodeagent.cli import reloading
from nodeagent.cli.main import cli
from nodeagent.domain.errors import InvalidField, NotAllowed, OutsideFault


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "nodeagent.toml"
    path.touch(mode=0o600)
    return path


@pytest.fixture
def reload(tmp_path: Path, settings: Path) -> wiring.Reload:
    return reload_of(tmp_path, settings)


def reload_of(directory: Path, settings: Path, *given: str) -> wiring.Reload:
    """A reload of an agent that was started with the defaults; *given* on its command line."""
    state = directory / "state"
    state.mkdir(mode=0o700)
    node = wiring.simulated_node("mi210", state)
    place = wiring.Place(node, directory / "s", state, None, News())
    return wiring.Reload(settings, config.Config(), place, frozenset(given))


def told(reload: wiring.Reload) -> dict[str, Any]:
    """What one reload tells the worker."""
    reload.make()
    reload.done()
    (message,) = reload._place.news.hear()
    return dict(message)


def test_the_keys_that_changed_are_told(reload, settings):
    """Each once, by the reload that found it."""
    settings.write_text("[limits]\nlive_leases = 3\n")
    assert told(reload) == {"path": str(settings), "changed": ["limits.live_leases"], "restart": []}
    assert told(reload)["changed"] == []
    settings.write_text("")
    assert told(reload)["changed"] == ["limits.live_leases"]


def test_a_section_that_is_written_several_times_is_told_by_its_name(reload, settings):
    """Its tables have no names of their own."""
    settings.write_text("[[quota]]\nuser = 0\nleases = 3\n")
    assert told(reload)["changed"] == ["quota"]


def test_what_waits_for_a_restart_is_told_until_then(reload, settings):
    """Where the agent listens and keeps its ledger stays; each reload says so, until that is undone."""
    settings.write_text('[server]\nsocket = "/run/x.sock"\n[state]\ndirectory = "/var/lib/x"\n')
    assert told(reload)["restart"] == ["server.socket", "state.directory"]
    assert told(reload)["restart"] == ["server.socket", "state.directory"]
    assert reload.make().settings.socket.name == "s"
    settings.write_text("")
    assert told(reload)["restart"] == []


def test_what_the_command_line_says_is_no_change(tmp_path, settings):
    """A key that `nodeagent serve` was given is never the file's."""
    reload = reload_of(tmp_path, settings, "server.socket")
    settings.write_text('[server]\nsocket = "/run/x.sock"\n')
    assert told(reload) == {"path": str(settings), "changed": [], "restart": []}


def test_a_reload_drops_nothing_silently(reload, settings):
    """What a start would do without, with a warning, is refused; every mistake is named."""
    settings.write_text("[limits]\nlive_leass = 3\n[watch]\nseconds = 0\n")
    with pytest.raises(InvalidField, match=r"live_leass.*watch.seconds|watch.seconds.*live_leass"):
        reload.make()


def test_a_failure_is_told_with_its_reason(reload, settings):
    """The worker that goes on writes it into the events."""
    reload.failed("no such group")
    assert list(reload._place.news.hear()) == [{"path": str(settings), "reason": "no such group"}]


def test_a_failure_of_countless_mistakes_is_told_all_the_same(reload):
    """The worker hears no message longer than it reads at once, and the log has all of it."""
    reload.failed("no such key; " * 20_000)
    (message,) = reload._place.news.hear()
    assert message["reason"].startswith("no such key; no such key")


def test_what_is_told_while_there_is_no_worker_waits():
    """The next worker hears it; nothing is there twice."""
    news = News()
    news.tell({"changed": []})
    news.tell({"reason": "x"})
    assert list(news.hear()) == [{"changed": []}, {"reason": "x"}]
    assert list(news.hear()) == []


def test_the_holder_of_a_state_directory_is_known(tmp_path):
    """It is the process that has the lock, and nobody after it."""
    assert holder(tmp_path) is None
    with sole(tmp_path):
        assert holder(tmp_path) == os.getpid()
    assert holder(tmp_path) is None


def test_a_number_that_was_left_over_is_no_holder(tmp_path):
    """A process that does not have the lock open is not sent a signal, whatever the file says."""
    with subprocess.Popen(["/bin/sleep", "60"]) as stranger:
        (tmp_path / "lock").write_text(f"{stranger.pid}\n")
        assert holder(tmp_path) is None
        stranger.kill()


def test_without_an_agent_there_is_nothing_to_reload(tmp_path, settings):
    """The command says so, and which directory it looked at."""
    with pytest.raises(OutsideFault, match=f"{tmp_path}: no agent runs on it"):
        reloading.renew(settings, tmp_path / "s", tmp_path)


@pytest.mark.root
def test_another_user_is_told_that_it_is_roots(tmp_path, settings):
    """Who may not read the lock is not told whether there is an agent."""
    tmp_path.chmod(0o700)
    with sole(tmp_path):
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            try:
                reloading.renew(None, tmp_path / "s", tmp_path)
            except NotAllowed:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_wrong_file_is_refused_before_the_agent_hears(tmp_path, settings):
    """Each complaint is a line, nothing is on stdout, and the exit is 2."""
    settings.write_text("[limits]\nlive_leass = 3\n")
    done = CliRunner().invoke(cli, ["reload", "--config", str(settings), "--state-dir", str(tmp_path)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"nodeagent: {settings}: limits.live_leass: unknown key; `nodeagent config show` lists all",
        "nodeagent: nothing was reloaded",
    ]


@pytest.mark.parametrize(
    ("event", "lines"),
    [
        (
            {"kind": "reloaded", "data": {"path": "/e", "changed": ["a.b", "c.d"], "restart": ["a.b"]}},
            ["/e: a.b, c.d changed", "from the next start on: a.b (systemctl restart nodeagent)"],
        ),
        ({"kind": "reloaded", "data": {"path": "/e", "changed": [], "restart": []}}, ["/e: nothing changed"]),
        (
            {"kind": "reload_failed", "reason": "no\x1bsuch", "data": {}},
            ["nodeagent: not reloaded, the settings of before hold on: no\\x1bsuch"],
        ),
    ],
)
def test_what_came_of_it_is_said_in_a_line(event, lines):
    """Changed keys, those that wait for a restart, or why it failed; no control character gets through."""
    assert reloading.lines(event) == lines


def test_every_key_that_needs_a_restart_exists():
    """A key that was renamed would be told of no more."""
    assert set(config.AT_START) <= set(config.keys())


def test_a_process_does_not_outgrow_its_reloads():
    """What is left of a graph is collected, though it was frozen."""
    program = """
import gc, weakref
from nodeagent.wiring import tidy
class Graph: pass
graph = Graph()
graph.itself, left = graph, weakref.ref(graph)
gc.freeze()
del graph
tidy()
assert left() is None and gc.get_freeze_count()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
