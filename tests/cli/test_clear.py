"""`nodeagent clear`: what it asks for, and what it says of a device."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from nodeagent.cli import asking
from nodeagent.cli.main import cli

KEY = "0000:c1:00.0/0"


def cleared(monkeypatch: pytest.MonkeyPatch, device: dict[str, Any], *words: str) -> Result:
    """What the command says where the agent answers with *device*."""
    answers = {"devices": [{"device": KEY}], "leases": [], **device}
    monkeypatch.setattr(asking, "ask", lambda *call: answers)
    return CliRunner().invoke(cli, ["clear", KEY, *words])


def test_a_device_that_is_well_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to do."""
    done = cleared(monkeypatch, {"state": "healthy", "reason": None})
    assert (done.exit_code, done.output) == (0, f"{KEY}: nothing is quarantined\n")


def test_a_device_that_is_sick_all_the_same_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that is below par, say, is not whole by being cleared."""
    done = cleared(monkeypatch, {"state": "unhealthy", "reason": "x8 of x16"})
    assert (done.exit_code, done.output) == (1, f"{KEY}: still unhealthy: x8 of x16\n")


def test_what_is_left_is_there_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --json a list of what is not well, empty where all is; the exit code is the same."""
    done = cleared(monkeypatch, {"state": "unhealthy", "reason": "x8 of x16"}, "--json")
    left = [{"lease": None, "device": KEY, "state": "unhealthy", "reason": "x8 of x16"}]
    assert (done.exit_code, json.loads(done.output)) == (1, {"left": left})
    done = cleared(monkeypatch, {"state": "healthy", "reason": None}, "--json")
    assert (done.exit_code, json.loads(done.output)) == (0, {"left": []})
