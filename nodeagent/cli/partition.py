"""`nodeagent partition`: the commands."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nodeagent.cli.options import CONFIG, FAILED, JSON, OK, SOCKET, WARN, dump

YES = click.option("--yes", is_flag=True, help="Do not ask first.")


@click.group(invoke_without_command=True)
@SOCKET
@JSON
@click.pass_context
def partition(context: click.Context, socket: Path | None, as_json: bool) -> None:
    """Show the cards' partition modes, or change how they are divided."""
    if context.invoked_subcommand is None:
        context.invoke(show, socket=socket, as_json=as_json)


@partition.command()
@SOCKET
@JSON
def show(socket: Path | None, as_json: bool) -> None:
    """Each card with the modes that it has and can take."""
    from nodeagent.cli.partitioning import answer, card_lines

    found = answer(socket)
    click.echo(dump(found) if as_json else card_lines(found))


@partition.command("set")
@SOCKET
@YES
@click.argument("card")
@click.argument("mode", type=click.Choice(["spx", "dpx", "tpx", "qpx", "cpx"], case_sensitive=False))
def set_mode(socket: Path | None, yes: bool, card: str, mode: str) -> None:
    """Put CARD, which nobody uses, into another compute partition mode."""
    from nodeagent.cli.partitioning import card_named, put

    pci = card_named(socket, card)
    _sure(yes, f"{pci} is divided anew ({mode}): its devices get other numbers. Go on?")
    click.echo(put(socket, pci, mode))


@partition.command()
@CONFIG
@SOCKET
@YES
def apply(config_path: Path | None, socket: Path | None, yes: bool) -> None:
    """Put each card that nobody uses into the mode that the settings want; exit 1 when one is not."""
    from nodeagent.cli.partitioning import put_all, unmet

    waiting = unmet(socket, config_path)
    if waiting:
        _sure(yes, f"{', '.join(one.card.pci for one in waiting)} will be divided anew. Go on?")
    lines, done = put_all(socket, waiting)
    click.echo("\n".join(lines) or "every card is as the settings want it")
    sys.exit(OK if done else WARN)


@partition.command("assert")
@CONFIG
@SOCKET
def assert_modes(config_path: Path | None, socket: Path | None) -> None:
    """Exit 0 when every card is as the settings want it, 1 when one is not, 2 when it cannot be told."""
    from nodeagent.cli.partitioning import compared

    lines, differs, wrong = compared(socket, config_path)
    click.echo("\n".join(lines) or "the settings say nothing of this node's cards")
    sys.exit(FAILED if wrong else WARN if differs else OK)


@partition.command()
@SOCKET
def export(socket: Path | None) -> None:
    """Print the settings for the modes that the cards have now."""
    from nodeagent.cli.partitioning import answer, settings_lines

    click.echo(settings_lines(answer(socket)))


def _sure(yes: bool, question: str) -> None:
    """Ask, unless told not to; a script must tell."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("nobody is there to ask: say --yes")
    click.confirm(question, abort=True)
