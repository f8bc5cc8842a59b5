"""`nodeagent health`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nodeagent.cli.options import NODE, SOCKET


@click.command()
@SOCKET
@NODE
@click.option("--nagios", is_flag=True, help="The line, performance data and exit codes of a Nagios plugin.")
@click.option(
    "--drain-node", is_flag=True, help="Have Slurm drain this node while no lease is granted, and resume it."
)
def health(socket: Path | None, node: str | None, nagios: bool, drain_node: bool) -> None:
    """One line; exit 0 well, 1 no new leases, 2 not answering."""
    from gpulease.screen import safe
    from nodeagent.cli.health_check import follow, look

    found = look(socket, devices=nagios)
    line, code = found.nagios() if nagios else (found.line, int(found.state))
    click.echo(safe(line))
    if drain_node:
        click.echo(safe(follow(socket, found, node)))
    sys.exit(code)
