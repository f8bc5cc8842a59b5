"""What `nodeagent audit` prints of what ran as a user."""

from __future__ import annotations

import json
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
