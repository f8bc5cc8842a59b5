"""The commands that only look: status, devices, quota, numbering, show, history, events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Optional

from gpulease.client import Client
from gpulease.command import Invocation
from gpulease.errors import AnswerError, InvalidField, Unknown
from gpulease.filters import named_devices, wanted_devices, wanted_events, wanted_leases
from gpulease.ids import lease_id, lease_ids
from gpulease.models import ENDED_STATES, LIVE_STATES, Event, Inside, Lease
from gpulease.show import (
    show_containers,
    show_devices,
    show_event,
    show_history,
    show_lease,
    show_lease_events,
    show_numbering,
    show_quotas,
    show_status,
)

_EVENT_WAIT_SECONDS = 5
_LEASE_EVENTS = 20  # shown with a lease
_HISTORY = timedelta(days=7)  # that are shown unless told otherwise


def status(call: Invocation) -> int:
    node = call.client.node()
    devices = wanted_devices(call)
    leases = wanted_leases(call.args, leases_of_the_picture(call.client, call.args.state), devices)
    if call.args.json:
        call.body(
            {
                "node": node.raw,
                "devices": [device.raw for device in devices],
                "leases": [lease.raw for lease in leases],
            }
        )
    else:
        show_status(call.out, node, devices, leases)
    return 0


def leases_of_the_picture(client: Client, state: Optional[str]) -> list[Lease]:
    """Those in *state*, else all that live; an ended one only while a slice of it is quarantined."""
    found = client.leases((state,) if state else (*LIVE_STATES, "failed"))
    return [
        lease
        for lease in found
        if lease.state != "failed" or any(one.state == "quarantined" for one in lease.slices)
    ]


def devices(call: Invocation) -> int:
    wanted = [one for one in wanted_devices(call) if call.args.state in (None, one.state)]
    if call.args.json:
        call.body({"devices": [device.raw for device in wanted]})
    else:
        show_devices(call.out, wanted)
    return 0


def quota(call: Invocation) -> int:
    quotas, classes = call.client.quotas(), call.client.classes()
    if call.args.json:
        call.body({"quotas": [one.raw for one in quotas], "classes": list(classes)})
    else:
        show_quotas(call.out, quotas, classes)
    return 0


def numbering(call: Invocation) -> int:
    wanted, local = wanted_devices(call), _local(call)
    if call.args.json:
        call.body({"devices": [{**one.raw, "local_index": local.get(one.key)} for one in wanted]})
    else:
        show_numbering(call.out, wanted, local)
    return 0


def _local(call: Invocation) -> dict[str, int]:
    """By key, the place that each device has in the lease that is named, or in ours where we have one."""
    if call.args.id is not None:
        lease = call.client.lease(lease_id(call.client, call.args.id))
    else:
        try:
            mine = lease_ids(call.client, "mine")
        except Unknown:
            return {}
        if len(mine) > 1:
            return {}
        lease = call.client.lease(mine[0])
    return {one.device: at for at, one in enumerate(lease.slices)}


def show(call: Invocation) -> int:
    leases = [call.client.lease(one) for one in lease_ids(call.client, call.args.id)]
    if call.args.json:
        _bodies(call, leases)
    else:
        for lease in leases:
            show_lease(call.out, lease)
            show_containers(call.out, _containers_of(call, lease))
            show_lease_events(call.out, _events_of(call, lease))
    return 0


def _containers_of(call: Invocation, lease: Lease) -> tuple[Inside, ...]:
    """Those inside a lease of ours that lives; an agent of the version before cannot tell."""
    if lease.state != "active" or lease.masked:
        return ()
    try:
        return call.client.containers(lease.id)
    except AnswerError:
        return ()


def _events_of(call: Invocation, lease: Lease) -> tuple[Event, ...]:
    """The last of what befell it; an agent of the version before cannot tell."""
    try:
        return call.client.newest_events(_LEASE_EVENTS, lease=lease.id)
    except InvalidField:
        return ()


def history(call: Invocation) -> int:
    """Leases that ended within --since."""
    since = call.args.since or datetime.now(timezone.utc) - _HISTORY
    states = (call.args.state,) if call.args.state else ENDED_STATES
    ended = call.client.leases(states, user=call.args.user, ended_since=f"{since:%Y-%m-%dT%H:%M:%SZ}")
    keys = _keys(call)
    found = [lease for lease in ended if not keys or any(one.device in keys for one in lease.slices)]
    found.sort(key=lambda lease: lease.ended_at or "")
    if call.args.json:
        call.body({"leases": [lease.raw for lease in found], "next": None})
    else:
        show_history(call.out, found)
    return 0


def _bodies(call: Invocation, leases: Sequence[Lease]) -> None:
    if len(leases) == 1:
        call.body(leases[0].raw)
    else:
        call.body({"leases": [lease.raw for lease in leases], "next": None})


def events(call: Invocation) -> int:
    """With --json one event a line, as they come."""
    cursor, follow = call.args.after, call.args.follow
    keys = _keys(call)
    while True:
        page, following = call.client.events(cursor, _EVENT_WAIT_SECONDS if follow else 0)
        for event in wanted_events(call.args, page, keys):
            if call.args.json:
                call.body(event.raw, compact=True)
            else:
                show_event(call.out, event)
        call.out.flush()
        if not follow and (not page or following == cursor):
            return 0
        cursor = following


def _keys(call: Invocation) -> frozenset[str]:
    """The keys that ``--device`` means. A full key counts as it stands: its device may be gone by now."""
    names = named_devices(call.args)
    if all(name.partition("/")[2].isdigit() for name in names):
        return frozenset(names)
    return frozenset(names) | {device.key for device in wanted_devices(call)}
