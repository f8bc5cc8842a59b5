"""`nodeagent docker-plugin`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nodeagent.cli.options import WARN


@click.command("docker-plugin")
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    default=Path("/run/docker/plugins/nodeagent.sock"),
    show_default=True,
    help="Listen here, where systemd hands no socket over.",
)
@click.option(
    "--tickets",
    type=click.Path(path_type=Path),
    default=Path("/run/nodeagent/tickets"),
    show_default=True,
    help="The directory of leases' tickets.",
)
@click.option(
    "--keep", metavar="DIR", multiple=True, help="Docker's data-root, say: bound read-only at most."
)
@click.option(
    "--open", "opened", metavar="PATH", multiple=True, help="May be bound, though it lies in /run, say."
)
@click.option(
    "--buildkit", is_flag=True, help="Let BuildKit's calls pass: the daemon gives builds no devices."
)
@click.option("--may-remove", is_flag=True, help="Exit 1 while docker's settings name the plugin.")
def docker_plugin(
    socket: Path,
    tickets: Path,
    keep: tuple[str, ...],
    opened: tuple[str, ...],
    buildkit: bool,
    may_remove: bool,
) -> None:
    """Judge docker's calls for dockerd: a GPU only with a live lease's ticket."""
    from nodeagent.cli.docker_plugin import DAEMON, in_use, run

    if not may_remove:
        run(socket, tickets, keep=keep, opened=opened, buildkit=buildkit)
    elif in_use(DAEMON, socket.stem):
        click.echo(f"{DAEMON} names {socket.stem}: take it out and reload docker first", err=True)
        sys.exit(WARN)
