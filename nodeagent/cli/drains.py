"""`nodeagent drain` and `undrain`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from nodeagent.cli.options import JSON, SOCKET, WARN, dump, duration


@click.command()
@SOCKET
@click.argument("device", required=False)
@click.option("--all", "every", is_flag=True, help="The node: every device, also one that appears later.")
@click.option("--reason", help="Why; shown to those who are refused.")
@click.option(
    "--until", metavar="DURATION", callback=duration, help="End by itself after this long (30m, 2h, 1d)."
)
@JSON
def drain(
    socket: Path | None, device: str | None, every: bool, reason: str | None, until: int | None, as_json: bool
) -> None:
    """Grant nothing new on DEVICE; live leases go on. It outlives a reboot."""
    body = {"reason": reason, "until_seconds": until}
    given = {name: value for name, value in body.items() if value is not None}
    _each(socket, device, every, "drain", given, as_json)


@click.command()
@SOCKET
@click.argument("device", required=False)
@click.option("--all", "every", is_flag=True, help="The node's drain, and that of every device.")
@JSON
def undrain(socket: Path | None, device: str | None, every: bool, as_json: bool) -> None:
    """Grant on DEVICE again; exit 1 where the node's own drain still keeps it."""
    states = _each(socket, device, every, "undrain", {}, as_json)
    if "draining" in states:
        click.echo("the whole node is drained: `nodeagent undrain --all` ends that", err=True)
        sys.exit(WARN)


def _each(
    socket: Path | None,
    device: str | None,
    every: bool,
    verb: str,
    body: Mapping[str, str | int],
    as_json: bool,
) -> set[str]:
    """Drain or undrain; the states that the devices are in after that."""
    from gpulease.errors import UsageError
    from gpulease.screen import safe
    from nodeagent.cli.asking import ask, devices_meant, on_device

    if every == bool(device):
        raise UsageError("name one device, or say --all")
    if every:
        ask(socket, "POST", f"/v1/node/{verb}", body)
    answers = (
        ask(socket, "GET", "/v1/devices")["devices"]
        if every
        else [on_device(socket, key, verb, body) for key in devices_meant(socket, device, every)]
    )
    if as_json:
        click.echo(dump({"devices": answers}))
    for one in [] if as_json else answers:
        why = f": {one['reason']}" if one["reason"] else ""
        click.echo(safe(f"{one['device']}: {one['state']}{why}"))
    return {one["state"] for one in answers}
