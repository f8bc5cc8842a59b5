"""`nodeagent doctor`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
        for told in lines(shown):
            click.echo(told)
    sys.exit(worst(findings))


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """One line each; those that could not be looked at for one and the same reason are a line together."""
    from nodeagent.domain.doctor import Level

    reasons = Counter(one.text for one in findings if one.level is Level.UNSEEN)
    common = {why: count for why, count in reasons.items() if count > 1}
    told = False
    for one in findings:
        if one.level is not Level.UNSEEN or one.text not in common:
            yield line(one)
        elif not told:
            told = True
            yield unseen_line(common)


def unseen_line(reasons: Mapping[str, int]) -> str:
    """How many checks there was nothing to look at for, by reason."""
    from gpulease.screen import safe

    why = "; ".join(f"{why} ({count})" for why, count in reasons.items())
    return safe(f"UNSEEN {sum(reasons.values())} checks: {why} [--json names them]")


def line(finding: Finding) -> str:
    """One line: level, check, what was found; then the fix, and the report of what comes without it."""
    from gpulease.screen import safe

    told = f"{finding.level:6} {finding.name}: {finding.text}"
    return safe(f"{told} [fix: {finding.fix}; see {finding.issue}]" if finding.fix else told)
