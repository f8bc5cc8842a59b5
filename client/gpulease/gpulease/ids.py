"""The ways to name a lease: its number, ``slurm:JOB``, ``docker:NAME``, ``pid:N``, ``mine``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from gpulease.cgroups import PROC, below_mount, cgroup_of
from gpulease.client import Client
from gpulease.errors import Unknown, UsageError
from gpulease.models import Lease

ID_FORMS = "a lease's number, slurm:JOB, docker:NAME, pid:N or mine"


def lease_ids(client: Client, text: str, proc: Path = PROC) -> tuple[int, ...]:
    """The ids of the leases that *text* names, at least one.

    Raises:
        UsageError: no such way to name a lease.
        Unknown: no live lease goes by it.
    """
    if text.isdigit() and text.isascii():
        return (int(text),)
    kind, _, rest = text.partition(":")
    if text == "mine":
        found = _mine(client, proc)
    elif kind == "pid" and rest.isdigit() and rest.isascii():
        found = _of_process(client.leases(), int(rest), proc)
    elif kind in ("slurm", "docker", "client", "process") and rest:
        found = _held_by(client, kind, rest)
    else:
        raise UsageError(f"{text!r} is not {ID_FORMS}")
    if not found:
        raise Unknown({"detail": f"no live lease goes by {text!r}"}, status=404)
    return found


def lease_id(client: Client, text: str, proc: Path = PROC) -> int:
    """The id of the one lease that *text* names.

    Raises:
        UsageError: it names several.
    """
    found = lease_ids(client, text, proc)
    if len(found) > 1:
        names = ", ".join(str(one) for one in found)
        raise UsageError(f"{text!r} names several leases ({names}): give the number of one")
    return found[0]


def _held_by(client: Client, kind: str, name: str) -> tuple[int, ...]:
    leases = client.leases(holder=(kind, name))
    return _ids(
        one for one in leases if (one.holder.kind, one.holder.id) == (kind, name) or _bound(one, kind)
    )


def _bound(lease: Lease, kind: str) -> bool:
    """Whether the agent found it by the name of the container that it is bound to."""
    return kind == "docker" and lease.anchor.get("kind") == "container"


def _mine(client: Client, proc: Path) -> tuple[int, ...]:
    """The lease that this process runs in, else every live one of its user."""
    named = os.environ.get("GPULEASE_ID", "")
    if named.isdigit() and named.isascii():
        return (int(named),)
    leases = client.leases()
    inside = _of_process(leases, os.getpid(), proc)
    return inside or _ids(one for one in leases if one.holder.uid == os.getuid())


def _of_process(leases: Iterable[Lease], pid: int, proc: Path) -> tuple[int, ...]:
    """By the process's cgroup, or by the process that a lease is anchored to or held by."""
    cgroup = cgroup_of(pid, proc)
    return _ids(
        lease
        for lease in leases
        if (cgroup and lease.cgroup and _within(cgroup, below_mount(lease.cgroup, proc)))
        or lease.anchor.get("pid") == pid
        or (lease.holder.kind, lease.holder.id) == ("process", str(pid))
    )


def _within(cgroup: str, lease_cgroup: str) -> bool:
    return cgroup == lease_cgroup or cgroup.startswith(lease_cgroup.rstrip("/") + "/")


def _ids(leases: Iterable[Lease]) -> tuple[int, ...]:
    return tuple(lease.id for lease in leases)
