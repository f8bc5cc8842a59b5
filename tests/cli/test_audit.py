"""What `nodeagent audit` prints of what ran as a user."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

import nodeagent.audit
import nodeagent.cli.asking
from nodeagent.audit import Audit
from nodeagent.cli.audit import audit
from nodeagent.domain.audit import Level, Outcome
from nodeagent.domain.errors import OutsideFault


def test_what_a_users_program_told_commands_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's other processes may have written what the program in the lease said: as JSON, too."""
    hostile = "x\x1b[2J\x9b\u202e"
    outcomes = [Outcome(hostile, hostile, Level.HELD, hostile)]
    monkeypatch.setattr(
        nodeagent.audit, "audit", lambda *_words, **_more: Audit(7, 0, {"memory": hostile}, outcomes)
    )
    monkeypatch.setattr(nodeagent.audit, "ended", lambda _lease, _state: None)
    monkeypatch.setattr(nodeagent.cli.asking, "ask", lambda *_words, **_more: {"devices": []})
    for words in (["--json"], []):
        shown = CliRunner().invoke(audit, words).output
        assert shown and shown.replace("\n", "").isprintable()
    assert json.loads(CliRunner().invoke(audit, ["--json"]).output)["guarantee"] == {"memory": hostile}


@pytest.mark.parametrize("said", ["", "[]", '{"lease": "x"}', '{"lease": 1, "guarantee": {"memory": "all"}}'])
def test_what_a_users_program_told_may_be_anything(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """What cannot be read is a fault that names the user, and judged as nothing else."""
    monkeypatch.setattr(nodeagent.audit, "_ran", lambda *_words: said)
    with pytest.raises(OutsideFault, match="uid 12345's program"):
        nodeagent.audit.audit(Path("/run/none"), [], uid=12345)


def test_what_the_user_keeps_for_python_is_not_loaded() -> None:
    """A module in the user's own site-packages could answer in the place of what was tried."""
    python = nodeagent.audit._interpreter(os.geteuid() + 1)  # a virtual environment's has none anyway
    words = [python, "-c", "import site; print(site.ENABLE_USER_SITE)"]
    place = Path("/run/none")
    assert nodeagent.audit._ran(words, place, place, os.geteuid(), place) == "False\n"
