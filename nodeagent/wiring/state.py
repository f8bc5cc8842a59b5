"""Where an agent keeps what outlives it, and the cgroup subtree that goes with that."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from nodeagent import config as settings

LEDGER, BASELINES, NAMES, DUMPS = "ledger.sqlite3", "baselines", "names", "dumps"
SWITCHES = "switches"
CARDS = "cards"  # what each card told of its health, and what was acknowledged
FIRST_IDLE = "first_idle"  # what each pool used when idle, when this boot began
TICKET_KEY = "ticket.key"


def ledger_path(config_path: Path | None, state_dir: Path | None) -> Path:
    """Where the ledger lies."""
    if state_dir is None:
        state_dir = settings.check(config_path or settings.DEFAULT_PATH)[0].state.directory
    return state_dir / LEDGER


def stem(state_dir: Path) -> str:
    """The agent's own name among the node's: one for each state directory, so that two agents never meet."""
    if state_dir == settings.DEFAULT_STATE:
        return "gpulease"
    return f"gpulease_{hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()[:12]}"


def instance(state_dir: Path) -> str:
    """The agent's own cgroup subtree."""
    return f"{stem(state_dir)}.slice"
