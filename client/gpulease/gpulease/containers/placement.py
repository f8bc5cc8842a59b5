"""What the agent says a container of a lease must get, and the words for it on an engine's command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from gpulease.models import Lease, Raw, items, mapping, number, text


@dataclass(frozen=True)
class Mount:
    source: str
    target: str
    read_only: bool


@dataclass(frozen=True)
class Placement:
    """A lease's ``container`` in the API. Devices are (host, inside); None in *environment* means "unset"."""

    cgroup_parent: Optional[str]
    devices: tuple[tuple[str, str], ...]
    groups: tuple[int, ...]
    mounts: tuple[Mount, ...]
    environment: Mapping[str, Optional[str]]
    labels: Mapping[str, str]
    stop_timeout_seconds: Optional[int]
    seccomp: Optional[str]  # a profile, as JSON

    @classmethod
    def from_raw(cls, raw: Raw) -> Placement:
        seccomp = raw.get("seccomp")
        return cls(
            cgroup_parent=text(raw, "cgroup_parent"),
            devices=tuple((str(one["host"]), str(one["inside"])) for one in items(raw, "devices")),
            groups=tuple(one for one in raw.get("groups") or () if isinstance(one, int)),
            mounts=tuple(
                Mount(str(one["source"]), str(one["target"]), one.get("read_only") is True)
                for one in items(raw, "mounts")
            ),
            environment={
                str(name): None if value is None else str(value)
                for name, value in mapping(raw, "environment").items()
            },
            labels={str(name): str(value) for name, value in mapping(raw, "labels").items()},
            stop_timeout_seconds=number(raw, "stop_timeout_seconds"),
            seccomp=json.dumps(seccomp) if seccomp else None,
        )

    @classmethod
    def of(cls, lease: Lease) -> Optional[Placement]:
        """The lease's; None where the agent gives none: it is older, or the lease is not a container's."""
        raw = mapping(lease.raw, "container")
        return cls.from_raw(raw) if raw else None


# What --dry-run shows, which asks nobody: the agent alone knows the rest.
UNGRANTED = Placement(
    cgroup_parent="<cgroup of the lease>",
    devices=(("/dev/kfd", "/dev/kfd"), ("<render node of the lease>",) * 2),
    groups=(),
    mounts=(Mount("<file of the lease>", "/etc/gpulease/limits", True),),
    environment={"ROCR_VISIBLE_DEVICES": "<device>", "HSA_CU_MASK": "<mask>"},
    labels={"gpulease.lease": "<id>", "gpulease.ticket": "<ticket>"},
    stop_timeout_seconds=None,
    seccomp=None,
)
