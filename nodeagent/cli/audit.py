"""`nodeagent audit`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpulease.screen import safe
from nodeagent.cli.options import OK, SOCKET, WARN, dump

if TYPE_CHECKING:
    from nodeagent.audit import Audit


@click.command()
@SOCKET
@click.option("--uid", type=click.IntRange(min=0), help="Whose lease it is; nobody's (65534) if root asks.")
@click.option("--device", metavar="DEVICE", help="A lease of this device.")
@click.option("--require", metavar="KIND=LEVEL,…", help="A floor of the lease, as gpulease has it.")
@click.option("--json", "as_json", is_flag=True, help="Lease, guarantee and outcomes, for programs.")
def audit(
    socket: Path | None, uid: int | None, device: str | None, require: str | None, as_json: bool
) -> None:
    """Try to get out of a small lease of one's own; exit 2 if it does, 1 if something could not be tried."""
    from nodeagent.audit import NOBODY, ended
    from nodeagent.audit import audit as run
    from nodeagent.cli.asking import ask
    from nodeagent.config import DEFAULT_SOCKET
    from nodeagent.domain.audit import worst

    if uid is None:
        uid = NOBODY if os.geteuid() == 0 else os.geteuid()
    devices = ask(socket, "GET", "/v1/devices")["devices"]
    options = [*(("--device", device) if device else ()), *(("--require", require) if require else ())]
    done = run(socket or DEFAULT_SOCKET, devices, uid=uid, options=options)

    def state(lease: int) -> str | None:
        return str(ask(socket, "GET", f"/v1/leases/{lease}?wait=5")["state"])

    left = ended(done.lease, state)
    if as_json:
        click.echo(dump({**asdict(done), "left": left}))
    else:
        for line in lines(done, left):
            click.echo(line)
    sys.exit(max(worst(done.outcomes), WARN if left else OK))


def lines(done: Audit, left: str | None) -> list[str]:
    """Who held what, then one line a way out, and what is left of the lease."""
    guarantee = ", ".join(f"{kind} {held}" for kind, held in done.guarantee.items())
    told = [f"lease {done.lease} of uid {done.uid} states: {guarantee}"]
    told += [
        f"{one.level:9} {f'{one.device}: ' if one.device else ''}{one.way}: {one.text}"
        for one in done.outcomes
    ]
    return [safe(line) for line in (*told, *([f"LEFT      {left}"] if left else ()))]
