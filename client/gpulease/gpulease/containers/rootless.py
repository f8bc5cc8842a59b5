"""A container of podman without root: the wrapper goes into the lease itself, and the container stays there.

podman cannot move the container of a user into a cgroup of the agent's. With ``--cgroups=disabled`` it moves
it nowhere: what we are in when podman starts, the container is in, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Optional

from gpulease.client import Client
from gpulease.containers.image import Image
from gpulease.containers.libc import STATIC, UNKNOWN
from gpulease.containers.placement import Mount, Placement
from gpulease.containers.variables import PRELOAD
from gpulease.errors import ImageUnfit
from gpulease.models import Lease

ANCHOR = {"kind": "cgroup"}
CGROUPS = "--cgroups=disabled"
_LIMITS = "GPULEASE_HOOK"


def refuse_unheld(image: Image, floor: Mapping[str, str]) -> Optional[str]:
    """What is to be said of an image whose programs do not load the hook, where nothing else may hold them.

    The agent does not know: to it the lease is a cgroup's like any other.

    Raises:
        ImageUnfit: the hook is demanded.
    """
    if image.libc not in (STATIC, UNKNOWN):
        return None
    if "hook" in (floor.get("memory"), floor.get("compute")):
        raise ImageUnfit(f"the hook is demanded, and the image's program cannot load it: {image}")
    return f"note: the image's program may not load the hook ({image}): only a cgroup's limits hold it"


def placement_of(client: Client, lease: Lease) -> Placement:
    """What a container gets that runs in the lease's cgroup, as any other program of the lease's would."""
    environment = lease.environment or {}
    nodes = [client.device(one.device).render_node for one in lease.slices]
    paths = ["/dev/kfd", *(f"/dev/dri/{node}" for node in nodes if node)]
    return Placement(
        cgroup_parent=None,
        devices=tuple((path, path) for path in paths),
        groups=(),
        mounts=tuple(_hook(environment)),
        environment=environment,
        labels={"gpulease.lease": str(lease.id)},
        stop_timeout_seconds=None,
        seccomp=None,
    )


def _hook(environment: Mapping[str, Optional[str]]) -> list[Mount]:
    """The hook's library, and where it finds its limits and writes what is used; nothing without a hook."""
    library = (environment.get(PRELOAD) or "").partition(":")[0]
    limits = PurePosixPath(environment.get(_LIMITS) or "/")
    if not library or len(limits.parents) < 4:
        return []
    files = str(limits.parents[2])  # <files>/<instance>/<lease>/limits
    return [Mount(library, library, True), Mount(files, files, False)]
