"""Metrics as a file: who reads it sees the old or the new one, and never an agent that is not there."""

from __future__ import annotations

from pathlib import Path

from gpulease.client import DEFAULT_SOCKET
from gpulease.errors import AgentUnreachable
from gpulease.transport import Transport
from nodeagent.adapters.private_directory import check_private
from nodeagent.adapters.replacing import faults_of, replace
from nodeagent.domain.errors import OutsideFault

_UP = "# HELP nodeagent_up Whether the agent answered for this file.\n# TYPE nodeagent_up gauge\n"
UP, DOWN = f"{_UP}nodeagent_up 1\n", f"{_UP}nodeagent_up 0\n"
MODE = 0o644  # node_exporter is another user; there is no user's text in it


def scrape(socket: Path | None) -> str:
    """The agent's metrics.

    Raises:
        AgentUnreachable: it does not answer, or not with metrics.
    """
    answer = Transport(str(socket or DEFAULT_SOCKET), timeout=10).call("GET", "/metrics")
    if answer.status != 200:
        raise AgentUnreachable(f"{socket or DEFAULT_SOCKET}: answered {answer.status} instead of metrics")
    return answer.body.decode("utf-8", "replace")


def write(path: Path, text: str) -> None:
    """Replace *path* with *text*.

    Raises:
        OutsideFault: it cannot be written, or others may write in its directory and could put links there.
    """
    if not path.parent.is_dir():
        raise OutsideFault(path.parent, "no such directory: name the one of --collector.textfile.directory")
    check_private(path.parent)
    with faults_of(path):
        replace(path, text.encode("utf-8"), MODE)
