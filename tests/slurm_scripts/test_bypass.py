"""While root has bypassed the agent, every script lets its job through at once and asks nobody."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.adapters.bypass_file import BypassFile
from nodeagent.adapters.clock import SystemClock
from nodeagent.domain.mode import Bypass, bypass_for, text_of

from .conftest import EVERY_WAY, SHELLS, Site
from .played import PlayedAgent, says

pytestmark = pytest.mark.root


def begin(site: Site, seconds: int = 600) -> Bypass:
    """Bypass the site's agent, as root's command does."""
    made = bypass_for(seconds, uid=0, reason="why $(touch x)", clock=SystemClock())
    BypassFile("gpulease", root=site.top / "run" / "bypass").write(made)
    return made


def put(site: Site, text: str) -> Path:
    path = site.top / "run" / "bypass" / "gpulease"
    path.write_text(text)
    return path


@EVERY_WAY
def test_every_script_lets_its_job_through(site: Site) -> None:
    """No agent is there; the job has no GPU lease and no message, its epilog's call is kept for the agent."""
    begin(site)
    assert site.prolog() == replace(site.prolog(), code=0, stdout="", stderr="")
    assert site.path("allowed", "42").read_text() == "\n"
    assert (site.task().code, site.task().stdout) == (0, "")
    assert site.epilog().code == 0
    assert [path.name.split("-")[:2] for path in site.spooled] == [["epilog", "42"]]
    assert site.run("await-agent", {}, arguments=["1"]).code == 0


@pytest.mark.parametrize("shell", SHELLS)
def test_a_job_of_the_bypass_runs_on_after_it(site: Site, agent: PlayedAgent) -> None:
    """Its later tasks start too, though the agent, which is asked of nothing, has no lease of it."""
    begin(site)
    site.prolog()
    (site.top / "run/bypass/gpulease").unlink()
    assert (site.task().code, site.task().stdout) == (0, "")
    assert agent.asked == []


def test_nothing_is_asked_while_bypassed(site: Site, agent: PlayedAgent) -> None:
    """An agent that hangs or lies holds up nobody."""
    begin(site)
    for script in (site.prolog, site.task, site.epilog):
        assert script().code == 0
    assert agent.asked == []


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_no_bypass_changes_nothing(site: Site, agent: PlayedAgent) -> None:
    """One that is over, of another boot, half written, for others to write, or a link: the agent is asked."""
    agent.play(*[says("fault\nasked\n")] * 20)
    good = text_of(begin(site))
    boot, ends, *rest = good.splitlines(keepends=True)
    over = f"until={int(time.clock_gettime(time.CLOCK_BOOTTIME)) - 1}\n"
    for text in (
        "",
        boot,
        "".join([boot, over, *rest]),
        "".join([boot, "until=\n", *rest]),
        "".join([boot, "until=99999999999999999999\n", *rest]),
        "".join([boot, "until=9 -o 1\n", *rest]),
        "".join([ends, boot, *rest]),
        "".join(["boot_id=0b5d6b0e-3b1c-4f5e-9d4a-111111111111\n", ends, *rest]),
    ):
        put(site, text)
        assert site.prolog().code == 1, text
    path = put(site, good)
    assert site.prolog().code == 0
    path.chmod(0o666)
    assert site.prolog().code == 1
    path.chmod(0o644)
    os.chown(path, 1000, 0)
    assert site.prolog().code == 1
    os.chown(path, 0, 0)
    path.parent.chmod(0o777)
    assert site.prolog().code == 1
    path.parent.chmod(0o755)
    path.rename(site.top / "elsewhere")
    path.symlink_to(site.top / "elsewhere")
    assert site.prolog().code == 1
