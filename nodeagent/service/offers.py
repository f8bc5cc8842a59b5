"""What containers are given of a lease, as the journal is to hold it: known before anything is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from nodeagent.domain.environment import environment
from nodeagent.domain.offer import BindMount, GivenNode, Offer
from nodeagent.service.means import Setting

Mounts = Callable[[int, Setting], Sequence[BindMount]]


class Offers:
    """Devices below *root*, which is ``/`` on a real node, and what each of *mounts* has for a lease."""

    def __init__(self, root: Path, mounts: Sequence[Mounts]) -> None:
        self._root = root
        self._mounts = tuple(mounts)

    def of(self, lease_id: int, setting: Setting) -> Offer:
        """Raises AgentError where a device is gone."""
        found = [setting.inventory.device(one.device) for one in setting.placed]
        nodes = [f"dev/dri/{device.render_node}" for device in found if device and device.render_node]
        return Offer(
            devices=tuple(GivenNode(str(self._root / node), f"/{node}") for node in ("dev/kfd", *nodes)),
            mounts=tuple(mount for mounts in self._mounts for mount in mounts(lease_id, setting)),
            environment=environment(lease_id, setting.placed, setting.inventory),
        )
