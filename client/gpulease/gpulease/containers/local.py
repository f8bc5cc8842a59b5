"""Whether an engine's containers can be in a lease of this node's at all, before one is taken."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Optional

from gpulease.containers.commandline import CommandLine
from gpulease.containers.daemon import Daemon, daemon_of
from gpulease.errors import BreaksFence

_PODMAN_ELSEWHERE = ("--remote", "--url", "--connection", "--identity")
_PODMAN_SERVICES = ("CONTAINER_HOST", "CONTAINER_CONNECTION")


def is_rootless(line: CommandLine) -> bool:
    """Whether the engine is podman without root: its containers are ours, and so can be where we are."""
    return line.engine == "podman" and os.geteuid() != 0


def daemon_here(line: CommandLine, environment: Mapping[str, str]) -> Optional[Daemon]:
    """Docker's daemon; None of an engine that has none.

    Raises:
        BreaksFence: the engine is another machine's, or has not the rights to put a container into a lease.
    """
    if line.engine == "docker":
        daemon = daemon_of(line, environment)
        daemon.refuse_unfit(line)
        return daemon
    for reason in _elsewhere(line, environment):
        raise BreaksFence(reason)
    return None


def _elsewhere(line: CommandLine, environment: Mapping[str, str]) -> Iterator[str]:
    if line.engine == "nerdctl" and os.geteuid() != 0:
        yield "nerdctl without root: its containers cannot be in a lease; be root, or use gpulease podman"
    if line.engine != "podman":
        return
    given = [one.name for one in line.program_options if one.name in _PODMAN_ELSEWHERE and one.is_on]
    given += [name for name in _PODMAN_SERVICES if environment.get(name)]
    if given:
        yield f"{given[0]}: podman would run elsewhere, and the lease is of this node's GPUs: leave it out"
