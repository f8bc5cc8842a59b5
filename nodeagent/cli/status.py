"""`nodeagent status`."""

from __future__ import annotations

from pathlib import Path

import click

from nodeagent.cli.options import JSON, SOCKET, dump


@click.command()
@SOCKET
@JSON
def status(socket: Path | None, as_json: bool) -> None:
    """The node for its administrator: what is enforced, what is in use, what waits for somebody to look."""
    from nodeagent.cli.overview import Overview, lines

    found = Overview.asked(socket)
    click.echo(dump(found.to_json()) if as_json else lines(found))
