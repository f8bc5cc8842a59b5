"""`nodeagent`: run the agent on a node, and look after it.

Imports are inside the commands: `nodeagent health` must answer in a fifth of a second, and most of the
agent's libraries take longer than that to load.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from nodeagent import __version__
from nodeagent.cli.audit import audit
from nodeagent.cli.bypass import bypass
from nodeagent.cli.completion import completion
from nodeagent.cli.doctor import doctor
from nodeagent.cli.drains import drain, undrain
from nodeagent.cli.health import health
from nodeagent.cli.metrics import metrics
from nodeagent.cli.options import CONFIG, FAILED, JSON, OK, SOCKET, STATE_DIR, WARN, dump
from nodeagent.cli.partition import partition
from nodeagent.cli.plugin import docker_plugin
from nodeagent.cli.reload import reload
from nodeagent.cli.report import report
from nodeagent.cli.simulate import simulate
from nodeagent.cli.slurm import slurm
from nodeagent.cli.status import status
from nodeagent.cli.words import Plain
from nodeagent.domain.errors import AgentError, OutsideFault


class LeaseNumber(click.IntRange):
    """A lease's number; the other names of a lease are gpulease's."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(super().convert(value, param, ctx))
        except click.BadParameter:
            self.fail(f"{value!r} is not a lease's number; `gpulease status` lists them", param, ctx)


@click.group(cls=Plain, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nodeagent")
def cli() -> None:
    """Share this node's AMD GPUs among jobs, containers and users."""


@cli.command()
@CONFIG
@click.option("--simulate", metavar="NAME|FILE", help="Run on a machine file instead of this node's GPUs.")
@click.option(
    "--socket", type=click.Path(path_type=Path), help="Listen here, instead of where the settings say."
)
@STATE_DIR
@click.option(
    "--launcher",
    type=click.Path(path_type=Path),
    help="Have what listens here start commands and mount: for an agent in systemd's sandbox.",
)
def serve(
    config_path: Path | None,
    simulate: str | None,
    socket: Path | None,
    state_dir: Path | None,
    launcher: Path | None,
) -> None:
    """Run the agent in the foreground; `GET /readyz` answers 200 once it is ready."""
    from nodeagent.cli.serving import serve as run

    run(config_path, simulate=simulate, socket=socket, state_dir=state_dir, launcher=launcher)


@cli.group()
def config() -> None:
    """Check the settings, or show them all."""


@config.command("check")
@CONFIG
def config_check(config_path: Path | None) -> None:
    """Name every wrong key and value; exit 2 when there is one."""
    from nodeagent import config as settings

    path = config_path or settings.DEFAULT_PATH
    _, complaints = settings.check(path)
    for complaint in complaints:
        click.echo(f"{path}: {complaint}", err=True)
    if complaints:
        sys.exit(FAILED)
    click.echo(settings.verdict(path))


@config.command("show")
@CONFIG
@click.option(
    "--json", "as_json", is_flag=True, help="Values, which of them the file set, and what it got wrong."
)
def config_show(config_path: Path | None, as_json: bool) -> None:
    """Print the settings in force, with what each is for, and those that the file set with its name."""
    from nodeagent import config as settings

    path = config_path or settings.DEFAULT_PATH
    current, complaints = settings.check(path)
    if as_json:
        click.echo(dump(settings.document(current, path, complaints)))
        return
    click.echo(settings.render(current, path))
    for complaint in complaints:
        click.echo(f"ignored: {complaint}", err=True)


@cli.command()
@CONFIG
@STATE_DIR
def migrate(config_path: Path | None, state_dir: Path | None) -> None:
    """Bring the ledger to this version's schema; a copy is kept beside it."""
    from nodeagent.ledger.migrate import migrate as run

    path = ledger(config_path, state_dir)
    steps = run(path)
    click.echo(f"{path}: " + (f"the schema is {steps[-1]} now" if steps else "nothing to do"))


@cli.command()
@CONFIG
@STATE_DIR
@click.argument("target", type=click.Path(path_type=Path))
def backup(config_path: Path | None, state_dir: Path | None, target: Path) -> None:
    """Copy the ledger to TARGET while the agent runs; TARGET must not exist.

    To restore it: stop the agent, remove ledger.sqlite3-wal and -shm from the state directory, copy TARGET
    over ledger.sqlite3, start the agent. Leave the file `ids` as it is: an older one would let lease ids be
    used twice.
    """
    from nodeagent.ledger.backup import backup as run

    run(ledger(config_path, state_dir), target)
    click.echo(f"{target}: written")


@cli.command()
@SOCKET
@click.argument("target", metavar="DEVICE|LEASE")
@click.option("--force", is_flag=True, help="Free a lease's slices without proof; it is logged who said so.")
@click.option("--json", "as_json", is_flag=True, help="A list of what is left, for programs.")
def clear(socket: Path | None, target: str, force: bool, as_json: bool) -> None:
    """Try the proof of quarantined slices again, of a lease or a device; take a device's errors as known."""
    from gpulease.screen import safe
    from nodeagent.cli.asking import left_after_clearing, left_line

    left = left_after_clearing(socket, target, force=force)
    if as_json:
        click.echo(dump({"left": left}))
    else:
        lines = [left_line(one) for one in left] or [f"{target}: nothing is quarantined"]
        click.echo("\n".join(map(safe, lines)))
    sys.exit(WARN if left else OK)


@cli.command()
@SOCKET
@click.argument("lease", type=LeaseNumber(min=1))
@click.option("--json", "as_json", is_flag=True, help="The answer's body as it came.")
def journal(socket: Path | None, lease: int, as_json: bool) -> None:
    """Show what was done for LEASE outside the ledger, and what is in the way of a quarantined slice."""
    from nodeagent.cli.asking import ask, journal_lines

    answer = ask(socket, "GET", f"/v1/leases/{lease}/journal")
    click.echo(dump(answer) if as_json else journal_lines(answer))


@cli.command()
@SOCKET
@JSON
@click.argument("lease", type=LeaseNumber(min=1))
def ipc(socket: Path | None, lease: int, as_json: bool) -> None:
    """What of LEASE's shared memory would go with it now, or has gone, and why the rest stays."""
    from nodeagent.cli.asking import ask, left_lines

    left = ask(socket, "GET", f"/v1/leases/{lease}/ipc")
    click.echo(dump(left) if as_json else left_lines(left))


@cli.command()
@CONFIG
@STATE_DIR
def leave(config_path: Path | None, state_dir: Path | None) -> None:
    """Open what a stopped agent left closed to those without a lease, for it is not to start again.

    Leases' commands go on, with their limits.
    """
    from nodeagent.cli.leaving import leave as run

    for line in run(config_path, state_dir):
        click.echo(line)


COMMANDS = (
    audit,
    bypass,
    completion,
    docker_plugin,
    doctor,
    drain,
    health,
    metrics,
    partition,
    reload,
    report,
    simulate,
    slurm,
    status,
    undrain,
)
for command in COMMANDS:
    cli.add_command(command)


def ledger(config_path: Path | None, state_dir: Path | None) -> Path:
    """Where the ledger lies, or is to.

    Raises:
        OutsideFault: there is no such directory.
    """
    from nodeagent.wiring import ledger_path

    path = ledger_path(config_path, state_dir)
    if not path.parent.is_dir():
        raise OutsideFault(
            path.parent,
            "no such directory: the agent makes it at its first start, else name it by --state-dir",
        )
    return path


def main() -> None:
    """Run the command line; a fault is one line on stderr and exit code 2."""
    from gpulease.errors import GpuleaseError

    try:
        cli(standalone_mode=True)
    except (AgentError, GpuleaseError) as fault:
        click.echo(f"nodeagent: {fault}", err=True)
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
