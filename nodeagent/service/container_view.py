"""What the holder of a lease is told to start its container with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodeagent.adapters.tickets import Tickets
from nodeagent.domain.cdi import qualified
from nodeagent.domain.container import LEASE_LABEL, TICKET_LABEL, Engine, inside
from nodeagent.domain.lease import Lease, LeaseState
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.contained import CONTAINER
from nodeagent.service.guest_records import Guest
from nodeagent.service.means import mounts_of
from nodeagent.service.supervised_containers import profile_of


@dataclass(frozen=True, slots=True)
class ContainerView:
    """*id* once a container is bound. *devices*: ``host`` and ``inside`` path; *mounts*: as `mounts_of`.

    *cgroup_parent* is None where the engine's cgroups are elsewhere. *environment*: None unsets. *seccomp*:
    the profile that it needs, where a supervisor is asked about what it allocates.
    """

    engine: Engine | None
    id: str | None
    cgroup_parent: str | None
    devices: Sequence[Mapping[str, str]]
    groups: Sequence[int]
    mounts: Sequence[Mapping[str, Any]]
    environment: Mapping[str, str | None]
    labels: Mapping[str, str]
    stop_timeout_seconds: int
    cdi: str | None = None
    seccomp: Mapping[str, Any] | None = None


_OF_THE_HOST = ("LD_PRELOAD", "GPULEASE_HOOK")  # by which the lease's other programs have the hook


class ContainerViews:
    """*stop_seconds*: how long an engine is to wait for a container that it was told to stop."""

    def __init__(self, ledger: Ledger, tickets: Tickets, stop_seconds: int) -> None:
        self._ledger = ledger
        self._tickets = tickets
        self._stop_seconds = stop_seconds

    def of(self, lease: Lease, *, ticket: bool, cdi: bool) -> ContainerView | None:
        """Of a lease that has been granted; None where it is no container's. *ticket*, *cdi*: told, too."""
        held = lease.anchor.container
        if (held is None and not lease.request.cdi) or lease.environment is None:
            return None
        journal = self._ledger.effects(lease.id)
        found = next((one.evidence for one in journal if one.kind == CONTAINER and one.evidence), None)
        if found is None:
            return None
        told: Mapping[str, Any] = found
        labels = {LEASE_LABEL: str(lease.id)}
        if ticket and held is not None:
            labels[TICKET_LABEL] = self._tickets.of(lease.id)
        device = cdi and lease.request.cdi and lease.state is LeaseState.ACTIVE
        return ContainerView(
            engine=None if held is None else held.engine,
            id=None if held is None else held.id,
            cgroup_parent=told["cgroup_parent"],
            devices=told["devices"],
            groups=told["groups"],
            mounts=mounts_of(journal),
            environment=inside(lease.environment),
            labels=labels,
            stop_timeout_seconds=self._stop_seconds,
            cdi=qualified(self._tickets.of(lease.id)) if device else None,
            seccomp=profile_of(journal),
        )

    def of_guest(self, lease: Lease, guest: Guest) -> ContainerView:
        """Of a guest that was let in, for whoever asked for it."""
        told: Mapping[str, Any] = guest.entry.evidence or {}
        ours = {name: value for name, value in (lease.environment or {}).items() if name not in _OF_THE_HOST}
        return ContainerView(
            engine=guest.held.engine,
            id=guest.held.id,
            cgroup_parent=told["cgroup_parent"],
            devices=told["devices"],
            groups=told["groups"],
            mounts=told["mounts"],
            environment=inside({**ours, **told["environment"]}),
            labels={LEASE_LABEL: str(lease.id), TICKET_LABEL: self._tickets.of(lease.id, guest.number)},
            stop_timeout_seconds=self._stop_seconds,
        )
