"""What a process would hand down to its child, read of a peer: so that a launch in its name loosens nothing.

A command that root starts for a user must be as confined as one that the user starts: the same limits, mask
and nice value, and the same namespaces, root and filters, or it is refused (threat 9).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nodeagent.adapters.peer import Peer
from nodeagent.adapters.processes import PROC
from nodeagent.domain.errors import NotAllowed

_NAMESPACES = ("mnt", "pid", "user", "net", "ipc", "uts", "cgroup", "time")
_UNLIMITED = 2**64 - 1
_NAME_WIDTH = 26  # of a line in /proc/<pid>/limits
_KEPT_BY_PYTHON = (13, 25)  # SIGPIPE, SIGXFSZ: Python ignores them for itself, not for what it starts


@dataclass(frozen=True, slots=True)
class Inherited:
    """What goes from a process to its child, beside its ids and descriptors."""

    umask: int
    nice: int
    oom_score_adj: int
    no_new_privileges: bool
    ignored_signals: int  # bit N-1: signal N
    cpus: frozenset[int]
    limits: Mapping[int, tuple[int, int]]  # soft and hard by RLIMIT_ number


def inherited_from(peer: Peer, world: Path = PROC / "self") -> Inherited:
    """Read what *peer* would hand down. *world*: the /proc directory of a process as who starts the command.

    Raises:
        NotAllowed: the peer has ended, or lives in a namespace, root or sandbox of its own that a launch by
            the agent would take it out of.
    """
    try:
        status = _status(PROC / str(peer.pid))
        _check_same_world(peer.pid, status, world)
        found = Inherited(
            umask=int(status["Umask"], 8),
            nice=os.getpriority(os.PRIO_PROCESS, peer.pid),
            oom_score_adj=int((PROC / str(peer.pid) / "oom_score_adj").read_text()),
            no_new_privileges=status["NoNewPrivs"] == "1",
            ignored_signals=_ignored(int(status["SigIgn"], 16)),
            cpus=frozenset(os.sched_getaffinity(peer.pid)),
            limits=_limits(peer.pid),
        )
    except (OSError, KeyError) as fault:
        raise NotAllowed(f"process {peer.pid} has ended, or cannot be looked at: {fault}") from None
    # Last: alive now, it was the process behind the pid during the reads above.
    if not peer.alive():
        raise NotAllowed("the process that asked has ended")
    return found


def _check_same_world(pid: int, status: Mapping[str, str], world: Path) -> None:
    for name in _NAMESPACES:
        if not _same(pid, world, f"ns/{name}"):
            raise NotAllowed(f"the peer lives in a {name} namespace of its own, which a launch would leave")
    if not _same(pid, world, "root"):
        raise NotAllowed("the peer has a root directory of its own, which a launch would leave")
    if status.get("Seccomp", "0") != "0":
        raise NotAllowed("the peer is under a seccomp filter, which a launch would leave")
    own = _status(world)
    if _lacks(status["CapBnd"], own["CapBnd"]):
        raise NotAllowed("the peer's capabilities are bounded, which a launch would undo")
    if status["Uid"].split()[1] == "0" and _lacks(status["CapEff"], own["CapEff"]):
        raise NotAllowed("the peer is root with less than all capabilities, which a launch would undo")
    if _label(PROC / str(pid)) != _label(world):
        raise NotAllowed("the peer has another security label than the agent, which a launch would leave")


def _same(pid: int, world: Path, name: str) -> bool:
    try:
        theirs, ours = (PROC / str(pid) / name).stat(), (world / name).stat()
    except FileNotFoundError:
        return not (world / name).exists()  # a kernel without that namespace
    return (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)


def _lacks(theirs: str, ours: str) -> bool:
    return bool(int(ours, 16) & ~int(theirs, 16))


def _label(process: Path) -> str:
    try:
        return (process / "attr/current").read_text().strip("\0\n")
    except OSError:
        return ""  # no security module has a say


def _status(process: Path) -> dict[str, str]:
    lines = (process / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _ignored(mask: int) -> int:
    for number in _KEPT_BY_PYTHON:
        mask &= ~(1 << (number - 1))
    return mask


def _limits(pid: int) -> dict[int, tuple[int, int]]:
    """From the text file, whose lines come in the order of the RLIMIT_ numbers (fs/proc/base.c).

    prlimit(2) on another user's process wants CAP_SYS_RESOURCE even for a look.
    """
    _, *lines = (PROC / str(pid) / "limits").read_text().splitlines()
    limits = {}
    for which, line in enumerate(lines):
        soft, hard = line[_NAME_WIDTH:].split()[:2]
        limits[which] = (_number(soft), _number(hard))
    return limits


def _number(text: str) -> int:
    return _UNLIMITED if text == "unlimited" else int(text)
