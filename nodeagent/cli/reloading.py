"""What `nodeagent reload` does: SIGHUP for the agent, and the event that tells what came of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpulease.errors import AgentUnreachable
from gpulease.screen import safe
from nodeagent import config as settings
from nodeagent.adapters.sole import holder
from nodeagent.cli.asking import ask
from nodeagent.domain.errors import NotAllowed, OutsideFault

# More than the agent gives an old worker to end, a new one to come up, and the old settings to come back.
PATIENCE_SECONDS = 200.0
_WAIT_SECONDS = 5


def complaints(config_path: Path | None) -> list[str]:
    """What is wrong with the file, each line with its path."""
    path = config_path or settings.DEFAULT_PATH
    return [safe(f"{path}: {complaint}") for complaint in settings.check(path)[1]]


def renew(config_path: Path | None, socket: Path | None, state_dir: Path | None) -> Mapping[str, Any]:
    """Have the agent read its settings; the event that says what came of it.

    Raises:
        NotAllowed: the agent is another user's.
        OutsideFault: no agent runs on this state directory.
        AgentUnreachable: it does not tell.
    """
    config, _ = settings.check(config_path or settings.DEFAULT_PATH)
    where, state = socket or config.server.socket, state_dir or config.state.directory
    agent = _agent(state)
    newest = ask(where, "GET", "/v1/events?newest=1")["events"]
    try:
        os.kill(agent, signal.SIGHUP)
    except PermissionError:
        raise NotAllowed(f"process {agent} is another user's: only root may have the agent reload") from None
    return _told(where, max((event["id"] for event in newest), default=0))


def lines(event: Mapping[str, Any]) -> list[str]:
    """What to say of it."""
    data = event["data"]
    if event["kind"] != "reloaded":
        return [safe(f"nodeagent: not reloaded, the settings of before hold on: {event['reason']}")]
    found = [f"{data['path']}: " + (", ".join(data["changed"]) or "nothing") + " changed"]
    if data["restart"]:
        found.append(f"from the next start on: {', '.join(data['restart'])} (systemctl restart nodeagent)")
    return [safe(line) for line in found]


def _agent(state: Path) -> int:
    try:
        agent = holder(state)
    except OutsideFault as fault:
        raise NotAllowed(f"only root may have the agent reload: {fault}") from None
    if agent is None:
        raise OutsideFault(state, "no agent runs on it; `--state-dir` or `--config` name another")
    return agent


def _told(socket: Path, after: int) -> Mapping[str, Any]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        page = ask(socket, "GET", f"/v1/events?after={after}&wait={_WAIT_SECONDS}", timeout=PATIENCE_SECONDS)
        for event in page["events"]:
            if event["kind"] in ("reloaded", "reload_failed"):
                found: Mapping[str, Any] = event
                return found
        after = page["next"] or after
        if not page["events"]:
            time.sleep(0.1)
    raise AgentUnreachable(f"{socket}: the agent does not say what came of it: see its log")
