"""The filters of lists: ``--user --state --device --since``."""

from __future__ import annotations

import argparse
import pwd
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta, timezone
from typing import Optional

from gpulease.command import Invocation
from gpulease.models import ENDED_STATES, LIVE_STATES, Device, Event, Lease
from gpulease.options import listed, value_of
from gpulease.sizes import DURATION_FORMS, parse_duration

LEASE_STATES = LIVE_STATES + ENDED_STATES
DEVICE_STATES = ("healthy", "unhealthy", "excluded", "draining", "gone")


def user(text: str) -> int:
    """A uid, given as such or by its name on this machine.

    Raises:
        ValueError: there is no such user.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError:
        raise ValueError(f"{text!r} is neither a uid nor a user of this machine") from None


def moment(text: str) -> datetime:
    """A time, or how long ago it was.

    Raises:
        ValueError: it is neither.
    """
    try:
        return datetime.now(timezone.utc) - timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError):
        at = parse_time(text)
    if at is None:
        raise ValueError(
            f"{text!r} is neither {DURATION_FORMS} (ago), nor a time such as 2031-05-04T12:00:00Z"
        )
    return at


def parse_time(text: Optional[str]) -> Optional[datetime]:
    """An RFC 3339 time; one without a zone is local."""
    try:
        # Python < 3.11 reads no "Z".
        return datetime.fromisoformat((text or "").replace("Z", "+00:00")).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


def add_filters(parser: argparse.ArgumentParser, *names: str, states: Iterable[str] = ()) -> None:
    """The named filters, of ``user``, ``state``, ``device`` and ``since``."""
    add = parser.add_argument
    if "user" in names:
        add("--user", type=value_of(user), metavar="UID|NAME", help="only this user's")
    if "state" in names:
        add(
            "--state", choices=tuple(states), metavar="STATE", help=f"only those that are {', '.join(states)}"
        )
    if "device" in names:
        add("--device", action="append", type=listed, default=[], metavar="LIST", help="only these devices")
    if "since" in names:
        add("--since", type=value_of(moment), metavar="DUR|TIME", help="only what was made after this")


def named_devices(args: argparse.Namespace) -> tuple[str, ...]:
    """The names behind ``--device``, in any spelling; none means every device."""
    return tuple(name for group in args.device for name in group)


def wanted_devices(call: Invocation) -> tuple[Device, ...]:
    """Those that ``--device`` leaves; the agent knows what each name means."""
    return call.client.devices(named_devices(call.args))


def wanted_leases(
    args: argparse.Namespace, leases: Iterable[Lease], devices: Iterable[Device]
) -> tuple[Lease, ...]:
    """Those that the filters leave; with ``--device`` only those on one of *devices*."""
    keys = {device.key for device in devices} if named_devices(args) else set()
    return tuple(
        lease
        for lease in leases
        if (args.user is None or lease.holder.uid == args.user)
        and (args.state is None or lease.state == args.state)
        and (not keys or any(one.device in keys for one in lease.slices))
        and _since(args.since, lease.created_at)
    )


def wanted_events(
    args: argparse.Namespace, events: Iterable[Event], keys: Collection[str]
) -> tuple[Event, ...]:
    """Those that the filters leave; where there are *keys*, only those of such a device."""
    return tuple(
        event
        for event in events
        if (args.user is None or event.uid == args.user)
        and (not keys or (event.device or "") in keys)
        and _since(args.since, event.at)
    )


def _since(earliest: Optional[datetime], text: Optional[str]) -> bool:
    at = parse_time(text)
    return earliest is None or (at is not None and at >= earliest)
