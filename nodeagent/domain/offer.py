"""What a container is given of a lease: by docker's own options, or by a CDI device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class BindMount:
    """*source*, a path of the node's, as it stands at *target* in the container."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class GivenNode:
    """The device node *host* of the node's, as it is called *inside*."""

    host: str
    inside: str


@dataclass(frozen=True, slots=True)
class Offer:
    """What containers get; of the variables those that are None must not be set in them."""

    devices: tuple[GivenNode, ...] = ()
    mounts: tuple[BindMount, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offer:
        return cls(
            tuple(GivenNode(**one) for one in value["devices"]),
            tuple(BindMount(**one) for one in value["mounts"]),
            dict(value["environment"]),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
