"""`nodeagent reload`: the settings of now, without a restart."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nodeagent.cli.options import CONFIG, FAILED, SOCKET, STATE_DIR, dump


@click.command()
@CONFIG
@SOCKET
@STATE_DIR
@click.option("--json", "as_json", is_flag=True, help="Print the event that tells of it.")
def reload(config_path: Path | None, socket: Path | None, state_dir: Path | None, as_json: bool) -> None:
    """Have the running agent read its settings, wait until they hold, and say what changed."""
    from nodeagent.cli.reloading import complaints, lines, renew

    wrong = complaints(config_path)
    for complaint in wrong:
        click.echo(f"nodeagent: {complaint}", err=True)
    if wrong:
        click.echo("nodeagent: nothing was reloaded", err=True)
        sys.exit(FAILED)
    event = renew(config_path, socket, state_dir)
    if as_json:
        click.echo(dump(event))
    failed = event["kind"] != "reloaded"
    for line in [] if as_json else lines(event):
        click.echo(line, err=failed)
    sys.exit(FAILED if failed else 0)
