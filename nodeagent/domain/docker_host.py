"""A container's HostConfig, judged key by key: a key is ordinary, has a rule here, or is unknown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nodeagent.domain import docker_mounts as mounting
from nodeagent.domain.docker_body import Object, known, mapping, objects, read_json, text, texts
from nodeagent.domain.docker_grounds import Grounds
from nodeagent.domain.docker_keys import (
    CAPABILITIES,
    DEVICE_KEYS,
    DEVICES,
    HOST_ORDINARY,
    LOUD_ANNOTATIONS,
    REQUEST_KEYS,
    SECURITY,
)
from nodeagent.domain.docker_paths import within
from nodeagent.domain.docker_ticket import canonical, token_of
from nodeagent.domain.errors import InvalidField

ASK = "ask for a GPU with `gpulease docker run`"
_PARENT = re.compile(r"[A-Za-z0-9_.:@/-]*")
_ENGINES_OWN = re.compile(r"gpulease|slurm|(?:^|/)job_")

Rule = Callable[[Any, Grounds], Iterator[str]]


def judge_host(host: Object, grounds: Grounds) -> Iterator[str]:
    """Reasons against *host*, one by one."""
    yield from known("HostConfig", host, HOST_ORDINARY | _RULES.keys())
    for key, rule in _RULES.items():
        # Absent keys are judged as null: what a ticket demands must not be left out.
        yield from rule(host.get(key), grounds)


def _unset(why: str) -> Rule:
    """The key must have the value that it has where nobody sets it."""

    def rule(value: Any, _grounds: Grounds) -> Iterator[str]:
        if value not in (None, False, "", [], {}):
            yield why

    return rule


def _absent(why: str) -> Rule:
    """Even an empty list says something: nothing is masked."""

    def rule(value: Any, _grounds: Grounds) -> Iterator[str]:
        if value is not None:
            yield why

    return rule


def _among(key: str, *ordinary: str, why: str) -> Rule:
    def rule(value: Any, _grounds: Grounds) -> Iterator[str]:
        if text(key, value) not in ("", *ordinary):
            yield why

    return rule


def _namespace(key: str, *ordinary: str) -> Rule:
    """The container's own namespace, another container's, or one of *ordinary*; any where none are given."""

    def rule(value: Any, grounds: Grounds) -> Iterator[str]:
        mode, _, other = text(key, value).partition(":")
        if mode == "container":
            why = grounds.why_not_join(other)
            if why is not None:
                yield f"{key}: {why}"
        elif ordinary and mode not in ("", *ordinary):
            yield f"{key} {mode[:20]!r} reaches processes of leases and their devices"

    return rule


def _capabilities(value: Any, _grounds: Grounds) -> Iterator[str]:
    for name in texts("CapAdd", value):
        if name.upper().removeprefix("CAP_") not in CAPABILITIES or not name.isascii():
            yield f"capability {name[:40]!r} leads to every device of the node"


def _security(value: Any, grounds: Grounds) -> Iterator[str]:
    demanded = grounds.ticket.seccomp if grounds.ticket else None
    profiles: list[str] = []
    for option in texts("SecurityOpt", value):
        name = re.split("[=:]", option, maxsplit=1)[0]
        if name == "seccomp":
            profiles.append(option[len("seccomp=") :])
        elif name not in SECURITY:
            yield f"security option {name[:40]!r} is not known here"
    if demanded is not None and not profiles:
        yield f"what holds the lease needs its own seccomp profile: {ASK}"
    for profile in profiles:
        yield from _seccomp(profile, demanded)


def _seccomp(profile: str, demanded: str | None) -> Iterator[str]:
    """A profile may name a socket of the node for root's runtime to speak to: the lease's own alone."""
    if profile in ("unconfined", "builtin") and demanded is None:
        return
    try:
        document = mapping("seccomp", read_json(profile.encode()))
    except InvalidField as wrong:
        yield str(wrong)
        return
    if demanded is not None:
        if canonical(document) != demanded:
            yield f"what holds the lease needs its own seccomp profile, and no other: {ASK}"
    elif any(key.casefold().startswith("listener") for key in document):
        yield "a seccomp profile with a listener makes root's runtime speak to a socket of the node"


def _devices(value: Any, grounds: Grounds) -> Iterator[str]:
    leased = grounds.ticket.devices if grounds.ticket else frozenset()
    for device in objects("Devices", value):
        yield from known("a device", device, DEVICE_KEYS)
        path = text("PathOnHost", device.get("PathOnHost"))
        if path not in leased and not _harmless(path):
            yield f"device {path[:80]!r} is not the container's: {ASK}"


def _harmless(path: str) -> bool:
    return not {"", ".", ".."} & set(path[1:].split("/")) and any(within(path, device) for device in DEVICES)


def _device_requests(value: Any, grounds: Grounds) -> Iterator[str]:
    for request in objects("DeviceRequests", value):
        yield from known("a device request", request, REQUEST_KEYS)
        # dockerd heeds neither Count nor Capabilities with CDI; compose sends both.
        if grounds.ticket is None or token_of(request) is None or request.get("Options"):
            yield f"devices by request (--gpus, CDI) are not the container's: {ASK}"


def _cgroup_parent(value: Any, grounds: Grounds) -> Iterator[str]:
    parent = text("CgroupParent", value)
    if grounds.ticket and grounds.ticket.cgroup_parents:
        if parent not in grounds.ticket.cgroup_parents:
            yield f"the container must be below its lease's cgroup: {ASK}"
    elif not _PARENT.fullmatch(parent) or ".." in parent.split("/") or _ENGINES_OWN.search(parent):
        yield "that cgroup is a lease's or a job's, or is spelled in a strange way"


def _annotations(value: Any, _grounds: Grounds) -> Iterator[str]:
    for name in mapping("Annotations", value):
        if name.startswith(LOUD_ANNOTATIONS):
            yield f"annotation {name[:60]!r} makes the runtime change the container"


_RULES: Mapping[str, Rule] = {
    "Privileged": _unset(f"a privileged container reaches every GPU: {ASK}"),
    "Devices": _devices,
    "DeviceRequests": _device_requests,
    "DeviceCgroupRules": _unset(f"device cgroup rules open devices that are not the container's: {ASK}"),
    "CgroupParent": _cgroup_parent,
    "Binds": mounting.binds,
    "Mounts": mounting.mounts,
    "VolumesFrom": mounting.volumes_from,
    "VolumeDriver": _among(
        "VolumeDriver", "local", why="a volume driver other than `local` may mount any of the node's paths"
    ),
    "CapAdd": _capabilities,
    "SecurityOpt": _security,
    "Runtime": _among("Runtime", "runc", why="another runtime may bring devices along: leave --runtime out"),
    "Isolation": _among("Isolation", "default", why="isolation is not known here"),
    "PidMode": _namespace("PidMode", "private"),
    "IpcMode": _namespace("IpcMode"),
    "NetworkMode": _namespace("NetworkMode"),
    "UsernsMode": _among("UsernsMode", why="the node's user namespace is not the container's"),
    "Cgroup": _unset("a cgroup of another container is not this one's"),
    "MaskedPaths": _absent("the kernel's interfaces stay masked (no systempaths=unconfined)"),
    "ReadonlyPaths": _absent("the kernel's interfaces stay read-only (no systempaths=unconfined)"),
    "Annotations": _annotations,
}
