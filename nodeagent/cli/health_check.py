"""Asks how the agent is; and, where a site wants that, has Slurm drain the node while it grants nothing."""

from __future__ import annotations

import os
import re
import socket as sockets
import subprocess
import time
from pathlib import Path

from gpulease.errors import GpuleaseError
from nodeagent.adapters.bypass_file import BypassFile
from nodeagent.adapters.clock import SystemClock
from nodeagent.cli.asking import ask
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.health import Health, State, of_node, silent

SECONDS = 0.2
PATIENCE_SECONDS = 10.0  # before a node is drained: an agent that is upgraded is away for a moment
PAUSE_SECONDS = 0.5
SCONTROL = ("/usr/bin/scontrol", "/usr/local/bin/scontrol", "/opt/slurm/bin/scontrol")
OURS = "nodeagent:"  # begins the reason of a drain of ours: no other is ever ended
_NODE = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_STATE = re.compile(r"\bState=(\S+)")
_REASON = re.compile(r"\bReason=(.*?)(?: \[|$)", re.MULTILINE)


def look(socket: Path | None, *, devices: bool = False) -> Health:
    """How the agent is, within a fifth of a second."""
    try:
        node = ask(socket, "GET", "/v1/node", timeout=SECONDS)
        listed = ask(socket, "GET", "/v1/devices", timeout=SECONDS)["devices"] if devices else None
        return of_node(node, listed)
    except (GpuleaseError, ValueError, KeyError, TypeError) as fault:
        return silent(str(fault), _bypass() if socket is None else None)


def follow(socket: Path | None, found: Health, name: str | None) -> str:
    """Drain or resume this node in Slurm as *found* calls for; what was done.

    Slurm sees one state a node: so it is drained only when the agent stays away, and resumed only if nobody
    else drained it, or another reason was given since.

    Raises:
        OutsideFault: Slurm says no.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while found.state is not State.WELL and time.monotonic() < until:
        time.sleep(PAUSE_SECONDS)
        found = look(socket)
    name = name or os.environ.get("SLURMD_NODENAME") or sockets.gethostname().partition(".")[0]
    if not _NODE.fullmatch(name):
        raise OutsideFault("scontrol", f"{name!r} is no name of a node: say --node NAME")
    told = _scontrol("--oneliner", "show", "node", name)
    state, reason = _STATE.search(told), _REASON.search(told)
    drained, mine = "DRAIN" in (state[1] if state else ""), (reason[1] if reason else "").startswith(OURS)
    if found.state is State.WELL:
        if not (drained and mine):
            return "slurm: nothing to do"
        _scontrol("update", f"NodeName={name}", "State=RESUME")
        return f"slurm: {name} resumed"
    if drained:
        return f"slurm: {name} is drained already"
    said = "".join(one if one.isascii() and one.isprintable() else "?" for one in found.text)[:120]
    _scontrol("update", f"NodeName={name}", "State=DRAIN", f"Reason={OURS} {said}")
    return f"slurm: {name} drained"


def _scontrol(*words: str) -> str:
    program = next((path for path in SCONTROL if os.access(path, os.X_OK)), None)
    if program is None:
        raise OutsideFault("scontrol", f"is in none of {', '.join(SCONTROL)}")
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise OutsideFault(program, str(fault)) from fault
    if done.returncode:
        raise OutsideFault(program, done.stderr.strip()[:200] or f"exit {done.returncode}")
    return done.stdout


def _bypass() -> str | None:
    """The reason of a bypass of the node's own agent that is on."""
    try:
        found = BypassFile("gpulease").read()
    except OutsideFault:
        return None
    return found.reason if found is not None and found.holds(SystemClock()) else None
