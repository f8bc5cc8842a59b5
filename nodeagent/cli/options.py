"""Options that several commands take, and what they do."""

from __future__ import annotations

from pathlib import Path

import click

SOCKET = click.option(
    "--socket", type=click.Path(path_type=Path), envvar="GPULEASE_SOCKET", help="The agent's socket."
)
CONFIG = click.option(
    "--config",
    "config_path",
    # Named, it has to be there: the defaults in its stead would hide a typing error.
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Settings, instead of the site's.",
)
STATE_DIR = click.option(
    "--state-dir", type=click.Path(path_type=Path), help="Directory of the ledger, instead of the settings'."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the API's answer.")
SIMULATE = click.option(
    "--simulate", metavar="NAME|FILE", help="A machine file, instead of this node's GPUs."
)
NODE = click.option("--node", metavar="NAME", help="Slurm's name for the node, if not the host's.")

OK, WARN, FAILED = 0, 1, 2  # exit codes


def duration(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    """``30m`` as seconds."""
    from gpulease.sizes import parse_duration

    try:
        return None if text is None else parse_duration(text)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong)) from None


def dump(body: object) -> str:
    """JSON as the API sends it, indented; in ASCII, so that no user's text commands a terminal."""
    import json

    return json.dumps(body, indent=2)
