"""An orderly boot: slurmd starts when the agent grants, and at once where there is no agent."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import EVERY_WAY, ROOT, Ended, Site
from .played import PlayedAgent, closes, restarts, says

pytestmark = pytest.mark.root
UNIT = "etc/systemd/system/slurmd.service.d/nodeagent.conf"
SLURMD = Path("/usr/lib/systemd/system/slurmd.service")
BOOTING = says("not yet\n", status=503)


def awaited(site: Site, *arguments: str) -> Ended:
    return site.run("await-agent", {}, arguments=arguments)


@EVERY_WAY
def test_it_waits_until_the_agent_grants(site: Site, agent: PlayedAgent) -> None:
    """An agent that dies, restarts and is not ready is asked again, without a body, until it is ready."""
    agent.play(closes, restarts, BOOTING, BOOTING, "ready\n")
    assert awaited(site, "60").code == 0
    assert [one.line for one in agent.asked] == ["GET /readyz HTTP/1.1"] * 5
    assert {one.body for one in agent.asked} == {b""}


@pytest.mark.parametrize(("policy", "code"), [("drain", 1), ("fail", 1), ("allow", 0)])
def test_it_gives_up_as_the_site_says(site: Site, agent: PlayedAgent, policy: str, code: int) -> None:
    """When its time is over slurmd stays stopped, unless jobs may run without the agent; the log says why."""
    site.configure(on_agent_down=policy)
    agent.play(BOOTING)
    ended = awaited(site, "1")
    assert ended.code == code
    assert "not ready after 1 s" in ended.stderr and "503" in ended.stderr


def test_an_agent_that_is_not_started_yet_is_waited_for(site: Site) -> None:
    """The agent's settings say that it is installed, though its socket's directory is not there."""
    shutil.rmtree(site.socket.parent)
    assert awaited(site, "1").code == 1


def test_a_node_without_the_agent_does_not_wait(site: Site) -> None:
    """Neither settings nor a socket: slurmd starts at once, and the log says so."""
    site.edit("agent.sh", "socket=/run/nodeagent/api.sock", f"socket={site.top}/none/api.sock")
    shutil.rmtree(site.settings.parent)
    ended = awaited(site, "60")
    assert (ended.code, ended.stdout) == (0, "")
    assert "no agent is installed" in ended.stderr


@pytest.mark.parametrize("arguments", [(), ("soon",), ("-1",)])
def test_a_wait_without_a_bound_is_refused(site: Site, arguments: tuple[str, ...]) -> None:
    """No seconds, or what is no number: exit code 2."""
    assert awaited(site, *arguments).code == 2


def test_the_unit_starts_slurmd_behind_the_agent(tmp_path: Path) -> None:
    """The drop-in orders slurmd after the agent, and gives await-agent more time than it takes."""
    subprocess.run(["make", "-s", "install-slurm", f"DESTDIR={tmp_path}"], cwd=ROOT, check=True)
    lines = [line.split("=", 1) for line in (tmp_path / UNIT).read_text().splitlines() if "=" in line]
    said = {key: value for key, value in lines if not key.startswith("#")}
    assert said["After"] == said["Wants"] == "nodeagent.service"
    program, seconds = said["ExecStartPre"].split()
    assert (tmp_path / program.lstrip("/")).stat().st_mode & 0o111
    assert int(said["TimeoutStartSec"]) > int(seconds)


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """systemd-analyze finds nothing in slurmd's own unit with the drop-in that it does not know."""
    if not (shutil.which("systemd-analyze") and SLURMD.exists()):
        pytest.skip("needs systemd-analyze, and slurmd's unit: Debian's systemd and slurmd")
    drop_in = tmp_path / "slurmd.service.d"
    shutil.copytree(ROOT / "client/slurm/slurmd.service.d", drop_in)
    unit = drop_in / "nodeagent.conf"
    unit.write_text(unit.read_text().replace("/usr/libexec/nodeagent/slurm/await-agent", "/bin/true"))
    shutil.copy(SLURMD, tmp_path)
    words = ("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(tmp_path / SLURMD.name))
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
