"""The health line, and the same as a Nagios plugin's."""

from __future__ import annotations

import re
from typing import Any

import pytest

from nodeagent.domain.health import State, of_node, silent

NAGIOS = re.compile(r"NODEAGENT (OK|WARNING|CRITICAL) - [^|\n]+ \| (\w+=\d+ ?)+")


def node(**changes: Any) -> dict[str, Any]:
    return {"ready": True, "reason": None, "machine": "this node", "version": "1", **changes}


def device(state: str) -> dict[str, str]:
    return {"state": state}


DRAIN = {"device": None, "reason": "x"}


@pytest.mark.parametrize(
    ("changes", "states", "state", "code", "said"),
    [
        ({}, ["healthy"], State.WELL, 0, "well (this node, version 1)"),
        ({"drains": [DRAIN]}, ["draining"], State.WELL, 0, "node draining"),
        ({"drains": [{"device": "a/0"}]}, ["draining"], State.WELL, 0, "1 devices draining"),
        ({"modes": {"slurm": "observe", "client": "enforce"}}, ["healthy"], State.WELL, 0, "observing slurm"),
        ({"bypass": {"reason": "3 am"}}, ["healthy"], State.WELL, 1, "bypassed: 3 am"),
        ({"bypass_trouble": "not root's"}, ["healthy"], State.WELL, 1, "not believed: not root's"),
        ({}, ["healthy", "unhealthy", "gone"], State.WELL, 1, "2 of 3 devices sick"),
        (
            {"ready": False, "reason": "disk | full"},
            ["healthy"],
            State.NOT_GRANTING,
            2,
            "no new leases: disk",
        ),
    ],
)
def test_the_line_and_its_codes(
    changes: dict[str, Any], states: list[str], state: State, code: int, said: str
) -> None:
    """What an administrator chose is well; what somebody should look at only the plugin warns of."""
    health = of_node(node(**changes), [device(one) for one in states])
    line, nagios = health.nagios()
    assert (health.state, nagios) == (state, code)
    assert said in health.line and health.line.startswith("agent: ") and "\n" not in health.line
    assert NAGIOS.fullmatch(line), line
    assert f"devices={len(states)}" in line


def test_a_device_that_is_granted_from_with_a_reason_is_warned_of() -> None:
    """What the site only wants to be told of is no sickness."""
    health = of_node(node(), [{"state": "healthy", "reason": "x8 of x16"}, {"state": "healthy"}])
    assert health.nagios()[1] == 1
    assert "1 of 2 devices ailing, and granted from" in health.line
    assert health.figures["sick"] == 0


def test_an_agent_that_is_silent_is_critical_unless_it_is_bypassed() -> None:
    """Then nobody needs it."""
    assert silent("no such file", None).state is State.SILENT
    assert silent("no such file", None).nagios()[1] == 2
    bypassed = silent("no such file", "3 am")
    assert (bypassed.state, bypassed.nagios()[1]) == (State.WELL, 1)
    assert "bypassed: 3 am" in bypassed.line


def test_an_older_agents_document_will_do() -> None:
    """It has no modes, bypass or drains."""
    assert of_node(node()).state is State.WELL
