"""`nodeagent report`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nodeagent.cli.options import CONFIG, OK, SOCKET, STATE_DIR, WARN


@click.command()
@CONFIG
@SOCKET
@STATE_DIR
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The file to make, instead of one here.",
)
@click.option("--events", type=click.IntRange(0, 20_000), default=2000, show_default=True, help="The newest.")
@click.option("--full", is_flag=True, help="With users and their holders; else they are masked.")
def report(
    config_path: Path | None,
    socket: Path | None,
    state_dir: Path | None,
    output: Path | None,
    events: int,
    full: bool,
) -> None:
    """Gather one file for a ticket, also where no agent answers; exit 1 where a part of it failed."""
    from gpulease.screen import safe
    from nodeagent.cli.reporting import Sources, write

    sources = Sources.of(config_path, socket, state_dir, events=events, full=full)
    path, failed = write(sources, output)
    for name, why in failed.items():
        click.echo(safe(f"{name}: {why}"), err=True)
    click.echo(f"{path}: written, mode 0600" + ("" if full else "; users are masked: --full leaves them in"))
    sys.exit(WARN if failed else OK)
