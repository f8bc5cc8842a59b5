"""What a create asks to have mounted: Binds, Mounts, and the volumes of other containers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeagent.domain.docker_body import Object, known, mapping, objects, text, texts
from nodeagent.domain.docker_grounds import Grounds
from nodeagent.domain.docker_keys import BIND_KEYS, MOUNT_KEYS, MOUNT_TYPES, MOUNT_VOLUME_KEYS
from nodeagent.domain.docker_ticket import Mount

_VOLUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def binds(value: object, grounds: Grounds) -> Iterator[str]:
    """Reasons against ``SOURCE:TARGET[:OPTIONS]``; a source without a slash names a volume."""
    for bind in texts("Binds", value):
        source, _, rest = bind.partition(":")
        if source.startswith("/"):
            options = rest.partition(":")[2].split(",")
            yield from _against(grounds.trees.why_not(source, read_only="ro" in options))
        elif not _VOLUME.fullmatch(source):
            yield f"Binds: {source[:80]!r} is neither a path nor the name of a volume"


def mounts(value: object, grounds: Grounds) -> Iterator[str]:
    """Reasons against Mounts; those of the ticket's own are all to be there, and no others like them."""
    given = objects("Mounts", value)
    own = grounds.ticket.mounts if grounds.ticket and not grounds.by_cdi else frozenset()
    missing = own - {mount for each in given if (mount := _bind(each)) is not None}
    for mount in sorted(missing, key=lambda mount: mount.target):
        yield f"the lease's mount at {mount.target} is missing; start it through `gpulease docker run`"
    for each in given:
        yield from known("a mount", each, MOUNT_KEYS)
        if _bind(each) not in own:
            yield from _mount(each, grounds)


def volumes_from(value: object, grounds: Grounds) -> Iterator[str]:
    """Reasons against taking over the mounts of a lease's container."""
    for other in texts("VolumesFrom", value):
        yield from _against(grounds.why_not_join(other.partition(":")[0]))


def volumes(value: object) -> Iterator[str]:
    """Reasons against anonymous volumes: their names are targets only."""
    return (f"Volumes: {name[:80]!r} is no target" for name in mapping("Volumes", value) if ":" in name)


def driver(name: object, options: object) -> Iterator[str]:
    """Reasons against a volume's driver: the local one's options mount any of the node's paths."""
    if text("Driver", name) not in ("", "local"):
        yield "a volume driver other than `local` may mount any of the node's paths"
    if mapping("driver options", options):
        yield "options of a volume's driver can mount any of the node's paths; bind the path instead"


def _bind(mount: Object) -> Mount | None:
    """The plain bind mount that *mount* is; None where it is something else or has options."""
    said = {key for key, value in mount.items() if value not in (None, "", {})}
    if mount.get("Type") != "bind" or not said <= {"Type", "Source", "Target", "ReadOnly"}:
        return None
    read_only = mount.get("ReadOnly", False)
    return Mount(text("Source", mount.get("Source")), text("Target", mount.get("Target")), read_only is True)


def _mount(mount: Object, grounds: Grounds) -> Iterator[str]:
    kind = text("Type", mount.get("Type"))
    if kind not in MOUNT_TYPES:
        yield f"mounts of type {kind[:20]!r} are not known here"
    yield from known("BindOptions", mapping("BindOptions", mount.get("BindOptions")), BIND_KEYS)
    if kind == "bind":
        source = text("Source", mount.get("Source"))
        if not source.startswith("/"):
            yield f"Mounts: {source[:80]!r} is no path"
        yield from _against(grounds.trees.why_not(source, read_only=mount.get("ReadOnly") is True))
    volume = mapping("VolumeOptions", mount.get("VolumeOptions"))
    yield from known("VolumeOptions", volume, MOUNT_VOLUME_KEYS)
    config = mapping("DriverConfig", volume.get("DriverConfig"))
    yield from known("DriverConfig", config, ("Name", "Options"))
    yield from driver(config.get("Name"), config.get("Options"))


def _against(why: str | None) -> Iterator[str]:
    if why is not None:
        yield why
