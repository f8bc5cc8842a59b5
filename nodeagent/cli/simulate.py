"""`nodeagent simulate`."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def simulate() -> None:
    """Machine files: a node's sysfs in one file that the agent can run on."""


@simulate.command("list")
def simulate_list() -> None:
    """The machine files that are shipped."""
    from nodeagent.cli.simulating import listing

    for name, what in listing():
        click.echo(f"{name:16} {what}")


@simulate.command("capture")
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("/"),
    help="A copied tree, instead of this node; also a bare sys/class/kfd/kfd/topology.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE")
def simulate_capture(root: Path, output: Path) -> None:
    """Write this node's, or a copied tree's, machine file."""
    from nodeagent.cli.simulating import write_capture

    click.echo(write_capture(root, output))
