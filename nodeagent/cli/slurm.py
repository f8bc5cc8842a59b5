"""`nodeagent slurm`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nodeagent.cli.options import CONFIG, NODE, SIMULATE, SOCKET


@click.group()
def slurm() -> None:
    """Slurm's files: what they should hold on this node, and whether they do."""


@slurm.command("gres-conf")
@CONFIG
@SIMULATE
@NODE
@click.option("--shards", type=click.IntRange(1, 1024), help="Shards of each GPU, not what suits it best.")
@click.option(
    "--only", type=click.Choice(["gres.conf", "slurm.conf", "cgroup.conf"]), help="The lines of one file."
)
def slurm_gres_conf(
    config_path: Path | None, simulate: str | None, node: str | None, shards: int | None, only: str | None
) -> None:
    """Print the lines of gres.conf, slurm.conf and cgroup.conf that share this node's GPUs."""
    from nodeagent.cli.slurming import lines

    for line in lines(config_path, simulate, node, shards, only):
        click.echo(line)


@slurm.command("check")
@CONFIG
@SIMULATE
@NODE
@SOCKET
def slurm_check(
    config_path: Path | None, simulate: str | None, node: str | None, socket: Path | None
) -> None:
    """Compare the site's files with what is here and running; exit 1 with warnings, 2 with failures."""
    from nodeagent.cli.slurming import examine

    findings = examine(config_path, simulate=simulate, node=node, socket=socket)
    for finding in findings:
        click.echo(f"{finding.level:4} {finding.what}: {finding.why}")
    sys.exit(max(finding.level.exit_code for finding in findings))
