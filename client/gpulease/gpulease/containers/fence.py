"""What a user's own options must not be, for the lease to hold the container.

This is no boundary: who may talk to an engine can do without us. It keeps what we state about a container
true, and says what to do instead. Each judge yields the reasons that it has against a command line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from gpulease.containers.commandline import CommandLine
from gpulease.containers.mounts import mounts_of
from gpulease.containers.paths import gpu_majors, is_gpu_node, is_taken, leads_past
from gpulease.containers.wanted import Wanted
from gpulease.errors import BreaksFence

Judge = Callable[[CommandLine, Wanted], Iterator[str]]
# They give GPUs out, or start a virtual machine or a user namespace, in which the lease's files mean nothing.
_FOREIGN_RUNTIMES = ("amd", "habana", "kata", "krun", "nvidia", "runsc", "sysbox")
# With these a container's root undoes device rules, mounts or limits from inside.
_UNFENCING = ("ALL", "BPF", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO")
_DEVICE_RULE = r"([abc]) +(\*|[0-9]+):(\*|[0-9]+) "
_OUR_LABELS = "gpulease."


def refuse(line: CommandLine, wanted: Wanted) -> None:
    """Raise BreaksFence with the first reason against *line*, and what to do about it."""
    for judge in JUDGES:
        for reason in judge(line, wanted):
            raise BreaksFence(reason)


def _privileged(line: CommandLine, _: Wanted) -> Iterator[str]:
    if line.is_on("--privileged"):
        yield "--privileged gives the container every device: leave it out; the lease brings its own GPU"


def _devices(line: CommandLine, _: Wanted) -> Iterator[str]:
    paths = [one for one in _listed(line, "--device") if one.startswith("/")]
    nodes = [one for one in paths if is_gpu_node(one.partition(":")[0])]
    if nodes:
        yield f"--device {', '.join(nodes)}: leave it out; the lease brings its own GPU, and no other"
    for rule in line.values("--device-cgroup-rule"):
        found = re.match(_DEVICE_RULE, rule)
        majors = {str(major) for major in gpu_majors()}
        if found is None or found[1] == "a" or (found[1] == "c" and found[2] in {"*", *majors}):
            yield f"--device-cgroup-rule '{rule}' opens GPUs that are not the lease's: leave it out"


def _other_requests(line: CommandLine, _: Wanted) -> Iterator[str]:
    if line.values("--gpus"):
        yield "--gpus asks another runtime for whole GPUs: leave it out; --lease-gpus N takes slices"
    for name in _listed(line, "--device"):
        if not name.startswith("/") and name.partition("/")[0] in ("amd.com", "nodeagent.local"):
            yield f"--device {name} is a GPU of another request: leave it out; the lease brings its own"
    for runtime in (*line.values("--runtime"), *_before(line, "--runtime")):
        if runtime.rpartition("/")[2].removeprefix("io.containerd.").startswith(_FOREIGN_RUNTIMES):
            yield f"--runtime {runtime} gives out GPUs, or starts what a lease does not hold: leave it out"


def _binds(line: CommandLine, _: Wanted) -> Iterator[str]:
    for mount in mounts_of(line):
        reached = leads_past(mount.source, mount.read_only) if mount.source.startswith("/") else None
        if reached:
            yield f"{mount.said} gives the container {reached}: mount only what it needs"
        if is_taken(mount.target):
            yield f"{mount.said} covers what the lease puts there: choose another place in the container"
    if line.values("--volumes-from"):
        yield "--volumes-from brings mounts that nobody has looked at: name the volumes with --volume"


def _namespaces(line: CommandLine, wanted: Wanted) -> Iterator[str]:
    pid = line.last("--pid") or ""
    if pid == "host" or pid.startswith("ns:"):
        yield f"--pid={pid} shows the container every process of the node: leave it out"
    ipc = line.last("--ipc") or ""
    if wanted.floor.get("ipc") == "private" and ipc not in ("", "private", "shareable", "none"):
        yield f"--ipc={ipc} and --require ipc=private contradict each other"


def _cgroups(line: CommandLine, _: Wanted) -> Iterator[str]:
    if line.last("--cgroup-parent") is not None:
        yield "--cgroup-parent: the container's parent is its lease's cgroup; leave it out"
    if line.last("--cgroups") not in (None, "enabled"):
        yield "--cgroups: the container needs a cgroup of its own below its lease's; leave it out"
    for name in ("--pod", "--pod-id-file", "--init-ctr"):
        if line.last(name) is not None:
            yield f"{name}: in a pod the container is in the pod's cgroup, not in its lease's; leave it out"


def _rights(line: CommandLine, wanted: Wanted) -> Iterator[str]:
    for given in _listed(line, "--cap-add"):
        if given.upper().removeprefix("CAP_") in _UNFENCING:
            yield f"--cap-add {given} lets the container undo its limits: leave it out"
    if wanted.floor.get("memory") == "supervised" and has_own_profile(line):
        yield "--security-opt seccomp=… and --require memory=supervised contradict each other"


def has_own_profile(line: CommandLine) -> bool:
    """Whether the user chooses the container's seccomp profile."""
    return any(one.startswith("seccomp") for one in line.values("--security-opt"))


def _restarts(line: CommandLine, wanted: Wanted) -> Iterator[str]:
    policy = line.last("--restart")
    if policy not in (None, "", "no") and not wanted.restarts:
        yield (
            f"--restart {policy} would bring the container back when its GPU is another's: "
            "add --lease-restart, and the lease outlives its ends"
        )


def _labels(line: CommandLine, _: Wanted) -> Iterator[str]:
    for label in line.values("--label"):
        if label.startswith(_OUR_LABELS):
            yield f"--label {label}: the names {_OUR_LABELS}* are the lease's; choose another"


JUDGES: tuple[Judge, ...] = (
    _privileged,
    _devices,
    _other_requests,
    _binds,
    _namespaces,
    _cgroups,
    _rights,
    _restarts,
    _labels,
)


def _listed(line: CommandLine, name: str) -> Iterator[str]:
    """Values that podman and nerdctl take several of at once, with commas."""
    for value in line.values(name):
        yield from (one for one in value.split(",") if one)


def _before(line: CommandLine, name: str) -> Iterator[str]:
    return (option.value for option in line.program_options if option.name == name)
