"""The words that put a container into its lease: behind the user's options, where the last counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Optional

from gpulease.containers.commandline import CommandLine
from gpulease.containers.placement import Mount, Placement


def words_for(
    line: CommandLine,
    placement: Placement,
    *,
    profile: Optional[str] = None,
    labels: Optional[str] = None,
    can_init: bool = True,
) -> list[str]:
    """The options that *placement* needs on *line*.

    *profile* is the path of its seccomp profile, *labels* of a file with its labels: everybody on the node
    may read a command line, and so a ticket in it. *can_init*: the engine has an init program.
    """
    return [
        *([f"--cgroup-parent={placement.cgroup_parent}"] if placement.cgroup_parent else ()),
        *(f"--device={_device(*one)}" for one in placement.devices),
        *_groups(line, placement),
        *(f"--mount={_mount(one)}" for one in placement.mounts),
        *_environment(line, placement.environment),
        *([f"--security-opt=seccomp={profile}"] if profile else ()),
        *(["--init"] if can_init and wants_init(line) else ()),
        *([f"--label-file={labels}"] if labels else (f"--label={one}" for one in label_lines(placement))),
        *_stop_timeout(line, placement),
    ]


def label_lines(placement: Placement) -> list[str]:
    """Its labels, each as the engine reads it in a word or in a line of a file."""
    return [f"{name}={value}" for name, value in placement.labels.items()]


def wants_init(line: CommandLine) -> bool:
    """Whether the container needs an init of ours: to end on a stop, whatever its program makes of signals.

    Not where the user has decided, or where its first process is not the first of its namespace.
    """
    foreign_first = line.last("--pid") not in (None, "", "private") or line.last("--systemd") == "always"
    return line.last("--init") is None and not foreign_first


def too_short_stop(line: CommandLine, placement: Placement) -> bool:
    """Whether the user's ``--stop-timeout`` is shorter than the lease's grace; -1 is docker's "for ever"."""
    given, least = line.last("--stop-timeout"), placement.stop_timeout_seconds
    if given is None or least is None:
        return False
    try:
        return 0 <= int(given) < least
    except ValueError:
        return False


def _stop_timeout(line: CommandLine, placement: Placement) -> Iterator[str]:
    if placement.stop_timeout_seconds is None:
        return
    if line.last("--stop-timeout") is None or too_short_stop(line, placement):
        yield f"--stop-timeout={placement.stop_timeout_seconds}"


def _device(host: str, inside: str) -> str:
    return host if host == inside else f"{host}:{inside}"


def _groups(line: CommandLine, placement: Placement) -> Iterator[str]:
    if "keep-groups" not in line.values("--group-add"):  # podman takes no other beside it
        yield from (f"--group-add={group}" for group in placement.groups)


def _mount(mount: Mount) -> str:
    """Never ``--volume``, which would make the source of a lease that has ended."""
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    fields += ["readonly"] if mount.read_only else []
    return ",".join(_csv(field) for field in fields)


def _csv(field: str) -> str:
    return '"' + field.replace('"', '""') + '"' if any(one in field for one in ',"\n') else field


def _environment(line: CommandLine, environment: Mapping[str, Optional[str]]) -> Iterator[str]:
    for name, value in environment.items():
        if value is not None:
            yield f"--env={name}={value}"
        elif line.engine == "podman":
            yield f"--unsetenv={name}"
        else:  # a name alone, which our environment does not have, is taken out of the image's
            yield f"--env={name}"


def client_environment(
    inherited: Mapping[str, str], environment: Mapping[str, Optional[str]]
) -> dict[str, str]:
    """*inherited* for the engine's client, without what must be unset inside: ``--env=NAME`` would set it."""
    return {name: value for name, value in inherited.items() if environment.get(name, "") is not None}
