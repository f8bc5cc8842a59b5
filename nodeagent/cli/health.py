"""`nodeagent health`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nodeagent.cli.options import NODE, SOCKET, dump


@click.command()
@SOCKET
@NODE
@click.option("--nagios", is_flag=True, help="The line, performance data and exit codes of a Nagios plugin.")
@click.option(
    "--drain-node", is_flag=True, help="Have Slurm drain this node while no lease is granted, and resume it."
)
@click.option("--json", "as_json", is_flag=True, help="State, text, warnings and figures, for programs.")
def health(socket: Path | None, node: str | None, nagios: bool, drain_node: bool, as_json: bool) -> None:
    """One line; exit 0 well, 1 no new leases, 2 not answering."""
    from gpulease.screen import safe
    from nodeagent.cli.health_check import follow, look

    if nagios and as_json:
        raise click.UsageError("--nagios and --json are two ways to say it: take one")
    found = look(socket, devices=nagios or as_json)
    line, code = found.nagios() if nagios else (found.line, int(found.state))
    click.echo(dump(found.document()) if as_json else safe(line))
    if drain_node:
        click.echo(safe(follow(socket, found, node)), err=as_json)
    sys.exit(code)
