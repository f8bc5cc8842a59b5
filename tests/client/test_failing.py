"""What the command says, and its exit code, when it does not do what was asked."""

from __future__ import annotations

import json
from typing import Any

import pytest


def test_json_of_a_refusal(agent: Any, gpulease: Any, refusal: Any) -> None:
    """With --json a refusal's body is on stdout, its meaning on stderr and in the exit code."""
    agent.canned_grant = (409, refusal, {})
    done = gpulease("grant", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (3, refusal)
    assert "gpulease: NodeInsufficientDevice" in done.stderr


def test_json_of_a_client_error(agent: Any, gpulease: Any) -> None:
    """An error that the client itself finds has its code in the body, too."""
    agent.add_lease(state="released")
    assert json.loads(gpulease("env", "1001", "--json").stdout)["state"] == "released"
    agent.release_state = "failed"
    code = json.loads(gpulease("show", "mine", "--json", env={"GPULEASE_ID": "9"}).stdout)["code"]
    assert code == "UnknownThing"
    agent.grant_state = "cancelled"
    done = gpulease("grant", "--cu", "1", "--json")
    assert (done.returncode, json.loads(done.stdout)["code"]) == (3, "NotGranted")


def test_refusal(agent: Any, gpulease: Any, refusal: Any) -> None:
    """A refusal says why per device, who blocks, until when, and what to do; alike devices in one line."""
    agent.canned_grant = (409, refusal, {})
    done = gpulease("grant", "--cu", "64")
    assert done.returncode == 3
    assert done.stderr == (
        "  8 × CardInsufficientCore: 32 CUs free, 64 asked\n"
        "  blocked by lease 1001, 1002\n"
        "  the earliest of them ends at 2031-05-04T12:00:00Z\n"
        "  next: wait with --wait, or ask for less\n"
        "gpulease: NodeInsufficientDevice: 0 devices fit, 1 is asked for\n"
    )


def test_many_different_reasons(agent: Any, gpulease: Any, refusal: Any) -> None:
    """Sixty-three devices with as many reasons are told in one line per code."""
    refusal["devices"] = [
        {"device": f"d/{n}", "code": "CardInsufficientCore", "why": f"{n} CUs free"} for n in range(63)
    ]
    agent.canned_grant = (409, refusal, {})
    assert "  63 × CardInsufficientCore: 0 CUs free (the first)\n" in gpulease("grant").stderr


def test_escaped_refusal(agent: Any, gpulease: Any, refusal: Any) -> None:
    """Text of others in a refusal cannot command the terminal or forge a line."""
    refusal["detail"] = "x\ngpulease: Fine: \x1b[2J"
    agent.canned_grant = (409, refusal, {})
    assert gpulease("grant").stderr.splitlines()[-1].endswith(": x gpulease: Fine: \\x1b[2J")


@pytest.mark.parametrize(
    ("reply", "code", "last"),
    [
        ((403, {"code": "NotAllowed", "detail": "not yours"}, {}), 4, "NotAllowed: not yours"),
        ((410, {"code": "StaleLease", "detail": "it ended"}, {}), 3, "StaleLease: it ended"),
        ((404, {"code": "UnknownThing", "detail": "no lease 1"}, {}), 2, "UnknownThing: no lease 1"),
        ((422, {"code": "InvalidField", "field": "a.b", "detail": "no"}, {}), 2, "InvalidField: a.b: no"),
        ((503, {"code": "NodeUnhealthy", "detail": "sick"}, {}), 5, "NodeUnhealthy: sick"),
        ((500, b"<html>", {}), 5, "NodeUnhealthy: HTTP status 500"),
    ],
)
def test_exit_codes(agent: Any, gpulease: Any, reply: Any, code: int, last: str) -> None:
    """Each kind of no has its exit code, and a last line for scripts."""
    agent.canned = [reply]
    done = gpulease("show", "1")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (code, f"gpulease: {last}")


def test_agent_away(gpulease: Any) -> None:
    """An agent that is not there is 5, from the option's socket as from the variable's."""
    assert gpulease("status", "--timeout", "1", env={"GPULEASE_SOCKET": "/nope"}).returncode == 5
    done = gpulease("--socket", "/nada", "--timeout", "1", "status")
    assert "gpulease: AgentUnreachable: /nada" in done.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "COMMAND"),
        (["nonsense"], "nonsense"),
        (["grant", "--vram", "x"], "--vram"),
        (["grant", "--vram", "0%"], "--vram"),
        (["grant", "--vram", "16"], "--vram"),
        (["grant", "--cu", "0"], "--cu"),
        (["grant", "--cu", "lots"], "'shared'"),
        (["grant", "--gpus", "-1"], "--gpus"),
        (["grant", "--gpus", "0"], "--gpus"),
        (["grant", "--queues", "x"], "--queues"),
        (["grant", "--shape", "round"], "exact"),
        (["grant", "--placement", "x"], "binpack"),
        (["grant", "--priority", "x"], "high"),
        (["grant", "--require", "memory=strong"], "kernel|supervised"),
        (["grant", "--require", "speed=high"], "memory=kernel"),
        (["grant", "--ttl", "soon"], "1h30m"),
        (["grant", "--wait", "0"], "--wait"),
        (["grant", "--vra", "1G"], "--vra"),
        (["grant", "--exclusive", "--placement", "spread"], "contradict"),
        (["grant", "--cu", "shared"], "needs --vram"),
        (["status", "--state", "x"], "--state"),
        (["status", "--since", "x"], "--since"),
        (["status", "--user", "no-such-user"], "--user"),
        (["grant", "--request-id", ""], "--request-id"),
        (["grant", "--gpu", "1"], "`gpulease grant --help`"),
        (["show", "nonsense"], "slurm:JOB"),
        (["show"], "ID"),
        (["show", "1", "--", "x"], "--"),
    ],
)
def test_usage(gpulease: Any, words: list[str], named: str) -> None:
    """A word that can never be right is 2, and the message names it and what would do."""
    done = gpulease(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert named in done.stderr
    assert done.stderr.splitlines()[-1].startswith("gpulease: Usage: ")


def test_a_command_without_its_dashes(gpulease: Any) -> None:
    """`run CMD` without the dashes says where the command goes."""
    done = gpulease("run", "--cu", "25%", "true")
    assert done.returncode == 125
    assert "true; the command goes behind --" in done.stderr
