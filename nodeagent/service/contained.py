"""Containers: what a lease gives to the container that it was taken for, and how it ends that container."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from nodeagent.adapters.container_files import ContainerFiles
from nodeagent.adapters.tickets import Tickets
from nodeagent.domain import container
from nodeagent.domain.container import Container, Engine
from nodeagent.domain.device import Inventory
from nodeagent.domain.docker_ticket import digest
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.guarantee import Hold
from nodeagent.domain.lease import PlacedSlice
from nodeagent.service.cgroup_effects import CGROUP
from nodeagent.service.effects import Arguments, Done, Evidence, Pending, Planned, evidence_of
from nodeagent.service.means import Setting, mounts_of
from nodeagent.service.orders import Tier

CONTAINER = "container"


class Parents(Protocol):
    """Where the node's engines can put a container."""

    def parent(self, engine: Engine, path: str) -> str | None:
        """Its ``--cgroup-parent`` for a container in the cgroup *path*; None: it cannot lie there."""


class Ending(Protocol):
    """How containers end: see `stopping`."""

    def advance(self, lease: int, held: Container | None, *, in_cgroup: bool) -> Evidence | Pending: ...


class ContainerDoor:
    """Plans what the lease of a container needs. *why_not*: why there is none here."""

    at_best = Hold()

    def __init__(self, why_not: Callable[[], str | None]) -> None:
        self._why_not = why_not

    def tier(self) -> Tier:
        why = self._why_not()
        return Tier(CONTAINER, why is None, why or "a lease can be a container's, of docker or podman")

    def promise(self, setting: Setting) -> Hold:
        return Hold()

    def closed(self, setting: Setting) -> str | None:
        if setting.container is None:
            return None
        if why := self._why_not():
            return f"{CONTAINER}: {why}"
        missing = [one.device for one in setting.placed if _minor(one, setting.inventory) is None]
        return f"{CONTAINER}: {', '.join(missing)}: no render node to give to it" if missing else None

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        if setting.container is None or self.closed(setting):
            return []
        minors = [_minor(one, setting.inventory) for one in setting.placed]
        engine = setting.container.engine
        return [Planned(CONTAINER, {"lease": lease_id, "engine": engine, "render_minors": minors})]


class ContainerEffect:
    """The note and the ticket of a lease's container, and what its engine is to be told to start it.

    *root* is where the node's device files are below; *bound* says which container is a lease's.
    """

    def __init__(
        self,
        files: ContainerFiles,
        tickets: Tickets,
        parents: Parents,
        root: Path,
        stopping: Ending,
        bound: Callable[[int], Container | None],
    ) -> None:
        self._files = files
        self._tickets = tickets
        self._parents = parents
        self._root = root
        self._stopping = stopping
        self._bound = bound

    def apply(self, arguments: Arguments) -> Evidence:
        if why := self._files.unavailable():
            raise OutsideFault("containers", why)
        note = self._files.prepare(int(arguments["lease"]))
        return {"mounts": [{"source": str(note), "target": container.NOTE, "read_only": True}]}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        self._files.verify(int(arguments["lease"]))
        return {}

    def conclude(self, arguments: Arguments, before: Sequence[Done]) -> Evidence:
        """Write the ticket for the plugin, which is told all that the container may have."""
        lease, engine = int(arguments["lease"]), Engine(arguments["engine"])
        cgroup = evidence_of(before, CGROUP)
        parent = self._parents.parent(engine, str(cgroup["path"])) if cgroup else None
        devices = self._devices(arguments["render_minors"])
        groups = sorted({gid for one in devices if (gid := _group(one["host"]))})
        note = {"source": str(self._files.note(lease)), "target": container.NOTE, "read_only": True}
        mounts = [*mounts_of(before), note]
        said = digest(self._tickets.of(lease))
        self._files.admit(
            lease,
            said,
            {
                "lease": lease,
                "cgroup_parents": [parent] if parent else [],
                "devices": [one["host"] for one in devices],
                "mounts": [[one["source"], one["target"], one["read_only"]] for one in mounts],
                "groups": groups,
            },
        )
        return {"cgroup_parent": parent, "devices": devices, "groups": groups, "ticket": said}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        """What is to be mounted goes first: so no engine starts a container that is being ended."""
        lease = int(arguments["lease"])
        self._files.remove(lease)
        in_cgroup = evidence.get("cgroup_parent") is not None
        return self._stopping.advance(lease, self._bound(lease), in_cgroup=in_cgroup)

    def _devices(self, minors: Sequence[int]) -> list[dict[str, str]]:
        inside = ["/dev/kfd", *(f"/dev/dri/renderD{minor:d}" for minor in minors)]
        return [{"host": str(self._root / path[1:]), "inside": path} for path in inside]


def _minor(placed: PlacedSlice, inventory: Inventory) -> int | None:
    device = inventory.device(placed.device)
    return None if device is None else device.render_minor


def _group(path: str) -> int | None:
    """The group that a program needs to open *path*, where that is another than root's."""
    try:
        return Path(path).stat().st_gid or None
    except OSError:
        return None
