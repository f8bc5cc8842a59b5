"""`nodeagent doctor`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nodeagent.cli.options import CONFIG, SOCKET, STATE_DIR, dump

if TYPE_CHECKING:
    from nodeagent.domain.doctor import Finding


@click.command()
@CONFIG
@SOCKET
@STATE_DIR
@click.option("--json", "as_json", is_flag=True, help="A list of findings, for programs.")
@click.option("--quiet", is_flag=True, help="Only what is not OK.")
def doctor(
    config_path: Path | None, socket: Path | None, state_dir: Path | None, as_json: bool, quiet: bool
) -> None:
    """Check this node, and what the agent needs on it; exit 1 with warnings, 2 with failures."""
    from nodeagent.cli.doctoring import findings_of
    from nodeagent.domain.doctor import Level, worst

    findings = findings_of(config_path, socket=socket, state_dir=state_dir)
    shown = [one for one in findings if not quiet or one.level is not Level.OK]
    if as_json:
        click.echo(dump([asdict(one) for one in shown]))
    else:
        for one in shown:
            click.echo(line(one))
    sys.exit(worst(findings))


def line(finding: Finding) -> str:
    """One line: level, check, what was found; then the fix, and the report of what comes without it."""
    from gpulease.screen import safe

    told = f"{finding.level:6} {finding.name}: {finding.text}"
    return safe(f"{told} [fix: {finding.fix}; see {finding.issue}]" if finding.fix else told)
