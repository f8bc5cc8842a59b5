"""`nodeagent bypass`: nothing is enforced for a time, whether or not an agent lives."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nodeagent.cli.options import CONFIG, OK, SOCKET, STATE_DIR, WARN, dump


@click.group()
def bypass() -> None:
    """Open everything at once for a time: nothing is refused, limited, closed or killed."""


@bypass.command("on")
@CONFIG
@SOCKET
@STATE_DIR
@click.option("--until", metavar="DURATION", required=True, help="End by itself after this long (30m, 2h).")
@click.option("--reason", required=True, help="Why; shown in the status, the health line and the events.")
def bypass_on(
    config_path: Path | None, socket: Path | None, state_dir: Path | None, until: str, reason: str
) -> None:
    """Begin a bypass, or change its end; open what is closed, also where no agent answers."""
    from nodeagent.cli.bypassing import begin

    lines, opened = begin(config_path, state_dir, socket, until, reason)
    for line in lines:
        click.echo(line)
    sys.exit(OK if opened else WARN)


@bypass.command("off")
@CONFIG
@SOCKET
@STATE_DIR
def bypass_off(config_path: Path | None, socket: Path | None, state_dir: Path | None) -> None:
    """End it: the agent enforces again at its next look."""
    from nodeagent.cli.bypassing import end

    click.echo(end(config_path, state_dir, socket))


@bypass.command("status")
@CONFIG
@SOCKET
@STATE_DIR
@click.option("--json", "as_json", is_flag=True, help="Whether it is on, and what is on record of it.")
def bypass_status(
    config_path: Path | None, socket: Path | None, state_dir: Path | None, as_json: bool
) -> None:
    """Say whether it is on, until when and why; exit 1 while it is."""
    from nodeagent.cli.bypassing import state, state_line

    found = state(config_path, state_dir, socket)
    click.echo(dump(found) if as_json else state_line(found))
    sys.exit(WARN if found["on"] else OK)
