"""The commands that take, keep and give back: grant, adopt, renew, release, env."""

from __future__ import annotations

import re
from typing import Any, Optional

from gpulease.cgroups import below_mount
from gpulease.client import new_request_id
from gpulease.command import Invocation
from gpulease.errors import NotAllowed, NotGranted, Quarantined, Stale, UsageError
from gpulease.ids import lease_id, lease_ids
from gpulease.models import ENDED_STATES, Lease
from gpulease.options import request_fields, whole_device
from gpulease.progress import Progress
from gpulease.relay import Interrupted, Relay
from gpulease.run import RELEASE_WAIT_SECONDS, give_up
from gpulease.show import show_lease

_MOST_PIDS = 1 << 22  # the kernel's PID_MAX_LIMIT
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def grant(call: Invocation) -> int:
    """The lease belongs to a client by name, and lives by its time to live: nothing of ours stays running."""
    if call.args.cdi:
        return _grant_device(call)
    request_id = call.args.request_id or new_request_id()
    lease = _granted(call, {"kind": "client", "id": request_id}, {"kind": "ttl"}, request_id)
    _print(call, lease)
    if not call.args.json:
        call.err.line(_until_released(lease))
    return 0


def _grant_device(call: Invocation) -> int:
    """stdout has nothing but words for another command. The lease lives by its container, or by its time."""
    from gpulease.containers import cdi

    request_id, form = call.args.request_id or new_request_id(), call.args.cdi
    anchor = {"kind": "ttl"} if call.args.ttl else cdi.anchor(form)
    lease = _granted(call, {"kind": "client", "id": request_id}, anchor, request_id, cdi=True)
    if call.args.json:
        call.body(lease.raw)
        return 0
    for line in cdi.lines(lease, form):
        call.out.line(line)
    show_lease(call.err, lease)
    begins = f"gpulease: it begins with its container, within {cdi.START_SECONDS} seconds, and ends with it"
    call.err.line(_until_released(lease) if call.args.ttl else begins)
    return 0


def _until_released(lease: Lease) -> str:
    return f"gpulease: run `gpulease renew {lease.id}` before it ends, `gpulease release {lease.id}` after"


def adopt(call: Invocation) -> int:
    """What is adopted holds the lease itself; a cgroup goes by the name of the request."""
    target, request_id = call.args.target, call.args.request_id or new_request_id()
    if target.isascii() and target.isdigit():
        if not 1 < int(target) <= _MOST_PIDS:
            raise UsageError(f"no process that could be adopted has the number {target}")
        anchor: dict[str, Any] = {"kind": "process", "pid": int(target)}
        lease = _granted(call, {"kind": "process", "id": str(int(target))}, anchor, request_id)
    elif "/" in target:
        anchor = {"kind": "cgroup", "cgroup": below_mount(target)}
        lease = _granted(call, {"kind": "client", "id": request_id}, anchor, request_id)
    else:
        raise UsageError(f"{target!r} is neither a process id nor the path of a cgroup")
    _print(call, lease)
    call.err.line(
        "gpulease: note: memory stays advisory: what an adopted process holds already is not charged"
    )
    return 0


def _granted(
    call: Invocation, holder: dict[str, str], anchor: dict[str, Any], request_id: str, **more: Any
) -> Lease:
    asked = {**request_fields(call.args), **more}
    order = {**asked, "request_id": request_id, "holder": holder, "anchor": anchor}
    note = whole_device(call.args)
    if note:
        call.err.line(f"gpulease: {note}")
    lease: Optional[Lease] = None
    progress = Progress(call.err)
    try:
        with Relay().interrupting():
            lease = call.client.grant(**order)
            lease = call.client.granted(lease, progress)
    except Interrupted:
        give_up(call.client, order, lease)
        raise
    finally:
        progress.end()
    return lease


def renew(call: Invocation) -> int:
    _print(call, call.client.renew(lease_id(call.client, call.args.id), call.args.ttl))
    return 0


def release(call: Invocation) -> int:
    """Every lease that is named; what is quarantined then is a failure that the exit code tells."""
    failed = []
    for one in lease_ids(call.client, call.args.id):
        progress = Progress(call.err)
        try:
            lease = call.client.release(one, RELEASE_WAIT_SECONDS, progress)
        finally:
            progress.end()
        if lease.state == "failed":
            failed.append(lease)
        if call.args.json:
            call.body(lease.raw)
        else:
            call.out.line(f"lease {lease.id}: {lease.state}" + (f": {lease.reason}" if lease.reason else ""))
    if failed:
        names = ", ".join(str(lease.id) for lease in failed)
        raise Quarantined({"detail": f"lease {names} ended, but a slice is not proved clean"})
    return 0


def env(call: Invocation) -> int:
    """The lease's environment for ``eval``: no name or value can be anything but that to a shell."""
    lease = call.client.lease(lease_id(call.client, call.args.id))
    if call.args.json:
        call.body(lease.raw)
        return 0
    if lease.state in ENDED_STATES:
        raise Stale({"detail": f"lease {lease.id} is {lease.state}: what it had may be another's by now"})
    if lease.state == "queued":
        raise NotGranted({"detail": f"lease {lease.id} still waits, and has no environment yet"})
    if lease.environment is None:
        raise NotAllowed({"detail": f"the environment of lease {lease.id} is not shown to you"}, status=403)
    for name, value in lease.environment.items():
        call.out.line(shell_line(name, value))
    return 0


def shell_line(name: str, value: object) -> str:
    """``export NAME='value'``, or ``unset NAME`` for None.

    Raises:
        UsageError: a name that no shell has, or a value with control characters.
    """
    if not _VARIABLE.fullmatch(name):
        raise UsageError(f"the agent serves a variable by the name of {name!r}, which no shell has")
    if value is None:
        return f"unset {name}"
    if not str(value).isprintable():
        raise UsageError(f"the agent serves control characters in {name}")
    return f"export {name}='" + str(value).replace("'", "'\\''") + "'"


def _print(call: Invocation, lease: Lease) -> None:
    if call.args.json:
        call.body(lease.raw)
    else:
        show_lease(call.out, lease)
