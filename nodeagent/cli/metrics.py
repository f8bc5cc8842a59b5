"""`nodeagent metrics`: what Prometheus reads, on stdout or as a file for node_exporter."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nodeagent.cli.options import FAILED, SOCKET


@click.command()
@SOCKET
@click.option(
    "--textfile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Replace this file, at once and whole, instead of printing; it ends in .prom.",
)
def metrics(socket: Path | None, textfile: Path | None) -> None:
    """Print the agent's metrics, or write them to a file for node_exporter."""
    from nodeagent.cli.textfile import DOWN, UP, scrape, write

    if textfile is None:
        click.echo(scrape(socket), nl=False)
        return
    if textfile.suffix != ".prom":
        raise click.BadParameter("node_exporter reads names that end in .prom", param_hint="--textfile")
    from gpulease.errors import GpuleaseError

    try:
        text, fault = scrape(socket) + UP, None
    except GpuleaseError as error:  # old figures of an agent that is down would look like one that is well
        text, fault = DOWN, error
    write(textfile, text)
    if fault is not None:
        click.echo(f"nodeagent: {fault}", err=True)
        sys.exit(FAILED)
