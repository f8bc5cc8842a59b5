"""`nodeagent completion`: a script for a shell. At each Tab it asks the command itself."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that completes these commands in SHELL."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None  # click has all three
    made = found(ctx.find_root().command, {}, "nodeagent", "_NODEAGENT_COMPLETE")
    # Its own `source` would run bash to see that it is not older than 4.4.
    click.echo(made.source_template % made.source_vars())
