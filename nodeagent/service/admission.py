"""What a container is let in with: the devices it is given, and the ticket by which the plugin knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nodeagent.adapters.container_files import ContainerFiles
from nodeagent.adapters.tickets import Tickets
from nodeagent.domain.container import NOTE
from nodeagent.domain.docker_ticket import digest
from nodeagent.domain.errors import OutsideFault
from nodeagent.service.effects import Evidence


class Admission:
    """Notes and tickets. *root* is where the node's device files are below."""

    def __init__(self, files: ContainerFiles, tickets: Tickets, root: Path) -> None:
        self.files = files
        self._tickets = tickets
        self._root = root

    def prepare(self, lease: int, guest: int | None = None) -> Mapping[str, Any]:
        """Write the note of a lease's container; the mount of it, by which its processes are known."""
        if why := self.files.unavailable():
            raise OutsideFault("containers", why)
        self.files.prepare(lease, guest)
        return self.mount(lease, guest)

    def mount(self, lease: int, guest: int | None = None) -> Mapping[str, Any]:
        return {"source": str(self.files.note(lease, guest)), "target": NOTE, "read_only": True}

    def let_in(
        self,
        lease: int,
        parent: str | None,
        render_minors: Sequence[int],
        mounts: Sequence[Mapping[str, Any]],
        seccomp: Mapping[str, Any] | None = None,
        guest: int | None = None,
    ) -> Evidence:
        """Write the ticket for the plugin, which is told all that the container may have, and must."""
        devices = [
            self._device("/dev/kfd"),
            *(self._device(f"/dev/dri/renderD{one:d}") for one in render_minors),
        ]
        groups = sorted({gid for one in devices if (gid := _group(one["host"]))})
        said = digest(self._tickets.of(lease, guest))
        content = {
            "lease": lease,
            "cgroup_parents": [parent] if parent else [],
            "devices": [one["host"] for one in devices],
            "mounts": [[one["source"], one["target"], one["read_only"]] for one in mounts],
            "groups": groups,
            "seccomp": seccomp,
        }
        self.files.admit(lease, said, content, guest)
        return {"cgroup_parent": parent, "devices": devices, "groups": groups, "ticket": said}

    def _device(self, path: str) -> dict[str, str]:
        return {"host": str(self._root / path[1:]), "inside": path}


def _group(path: str) -> int | None:
    """The group that a program needs to open *path*, where that is another than root's."""
    try:
        return Path(path).stat().st_gid or None
    except OSError:
        return None
