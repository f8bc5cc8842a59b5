"""``gpulease top``: the node as it is now, again and again."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from gpulease.command import Invocation
from gpulease.errors import AgentUnhealthy, AgentUnreachable, GpuleaseError, InvalidField, TooMany
from gpulease.filters import wanted_devices, wanted_events, wanted_leases
from gpulease.models import Device, Event, Lease, Node
from gpulease.reading import leases_of_the_picture
from gpulease.screen import Coloured, Screen
from gpulease.show import show_event, show_status

_EVENTS = 10
_PASSING = (AgentUnreachable, AgentUnhealthy, TooMany)
_HELP = "q quits"


@dataclass(frozen=True)
class Picture:
    """What is seen at one moment."""

    node: Node
    devices: Sequence[Device]
    leases: Sequence[Lease]
    events: Sequence[Event]


def top(call: Invocation) -> int:
    """Live on a terminal; one picture for a pipe, or where one is asked for."""
    if call.args.json:
        _print_json(call, take(call))
    elif call.args.once or not (call.out.terminal and sys.stdin.isatty()):
        show(call.out, take(call))
    else:
        _live(call)
    return 0


def take(call: Invocation) -> Picture:
    devices = wanted_devices(call)
    leases = wanted_leases(call.args, leases_of_the_picture(call.client, call.args.state), devices)
    keys = {device.key for device in devices} if call.args.device else set()
    return Picture(call.client.node(), devices, leases, wanted_events(call.args, _newest(call), keys))


def _newest(call: Invocation) -> Sequence[Event]:
    try:
        return call.client.newest_events(_EVENTS)
    except InvalidField:  # an agent of before: it has events only from the first on
        return ()


def show(screen: Screen, picture: Picture) -> None:
    """The devices, who holds them, who waits, and what happened last."""
    show_status(screen, picture.node, picture.devices, picture.leases)
    if picture.events:
        screen.line()
        for event in reversed(picture.events):
            show_event(screen, event)


def _print_json(call: Invocation, picture: Picture) -> None:
    call.body(
        {
            "node": picture.node.raw,
            "devices": [device.raw for device in picture.devices],
            "leases": [lease.raw for lease in picture.leases],
            "events": [event.raw for event in picture.events],
        }
    )


def _live(call: Invocation) -> None:
    from gpulease.terminal import taken

    picture: Optional[Picture] = None
    with taken(call.out, sys.stdin.fileno()) as terminal:
        while True:
            trouble: Optional[GpuleaseError] = None
            try:
                picture = take(call)
            except _PASSING as passing:  # what is shown stays, and is said to be old
                trouble = passing
            while True:
                columns, _ = terminal.size
                terminal.draw(_frame(call.out, columns, picture, trouble))
                key = terminal.key(call.args.interval)
                if key in ("q", "Q", "\x03"):
                    return
                if not key:
                    break


def _frame(
    screen: Screen, columns: int, picture: Optional[Picture], trouble: Optional[GpuleaseError]
) -> list[str]:
    """The lines of one frame, as wide as the terminal is."""
    text = io.StringIO()
    sheet = screen.sheet(text, columns)
    if trouble is not None:
        sheet.line(Coloured(f"what is shown is old: {trouble}", "red"))
    sheet.line(Coloured(_HELP, "dim"))
    if picture is not None:
        show(sheet, picture)
    return text.getvalue().splitlines()
