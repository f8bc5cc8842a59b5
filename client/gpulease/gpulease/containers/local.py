"""Whether an engine's containers can be in a lease of this node's at all, before one is taken."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Optional

from gpulease.containers.commandline import CommandLine
from gpulease.containers.daemon import UNMAPPED, Daemon, daemon_of
from gpulease.errors import BreaksFence

_UID_MAP = Path("/proc/self/uid_map")
_PODMAN_ELSEWHERE = ("--remote", "--url", "--connection", "--identity")
_USER_NAMESPACE = ("--userns", "--uidmap", "--gidmap", "--subuidname", "--subgidname")
_PODMAN_SERVICES = ("CONTAINER_HOST", "CONTAINER_CONNECTION")


def is_rootless(line: CommandLine) -> bool:
    """Whether the engine is podman without root: its containers are ours, and so can be where we are."""
    return line.engine == "podman" and not _is_root()


def daemon_here(line: CommandLine, environment: Mapping[str, str]) -> Optional[Daemon]:
    """Docker's daemon; None of an engine that has none.

    Raises:
        BreaksFence: the engine is another machine's, or has not the rights to put a container into a lease.
    """
    for reason in (*_elsewhere(line, environment), *_mapped(line, environment)):
        raise BreaksFence(reason)
    if line.engine != "docker":
        return None
    daemon = daemon_of(line, environment)
    daemon.refuse_unfit(line)
    return daemon


def _is_root() -> bool:
    """Whether we are root of the machine, not of a user namespace alone."""
    try:
        whole = _UID_MAP.read_text(encoding="ascii").split() == ["0", "0", str(2**32 - 1)]
    except OSError:
        whole = True
    return os.geteuid() == 0 and whole


def _elsewhere(line: CommandLine, environment: Mapping[str, str]) -> Iterator[str]:
    if line.engine == "nerdctl" and not _is_root():
        yield "nerdctl without root: its containers cannot be in a lease; be root, or use gpulease podman"
    if line.engine != "podman":
        return
    given = [one.name for one in line.program_options if one.name in _PODMAN_ELSEWHERE and one.is_on]
    given += [name for name in _PODMAN_SERVICES if environment.get(name)]
    if given:
        yield f"{given[0]}: podman would run elsewhere, and the lease is of this node's GPUs: leave it out"


def _mapped(line: CommandLine, environment: Mapping[str, str]) -> Iterator[str]:
    """A user's own containers are in a user namespace anyway, with that user's rights to the nodes."""
    if is_rootless(line):
        return
    given = {name: line.last(name) for name in _USER_NAMESPACE}
    if line.engine == "podman" and given["--userns"] is None:
        given["PODMAN_USERNS"] = environment.get("PODMAN_USERNS")
    for name, value in given.items():
        if value not in (None, "", "host"):
            yield f"{name}={value}: {UNMAPPED}; leave it out"
