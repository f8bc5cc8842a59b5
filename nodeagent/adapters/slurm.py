"""Slurm's marks on the node: its processes, and the cgroups that it makes for jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.cgroup_sweep import child_names
from nodeagent.adapters.peer import Peer
from nodeagent.adapters.processes import PROC, parent_of, pidfd_open, uids_of
from nodeagent.domain.errors import NotAllowed, OutsideFault

STEPD = "slurmstepd"
SCOPE = f"{STEPD}.scope"
GENERATIONS = 8  # from whom the task-prolog starts, over the shell, to the task


def is_slurmstepd(pid: int) -> bool:
    """Whether *pid* is root's slurmstepd: what a user calls so is none."""
    uids = uids_of(pid)
    return _runs_stepd(pid) and uids is not None and set(uids) <= {0, os.geteuid()}


def job_scope(tree: CgroupTree, node: str | None) -> str | None:
    """The cgroup in which Slurm makes its jobs' on this node; None where it uses no cgroup2.

    It is ``slurmstepd.scope``, or ``<node>_slurmstepd.scope`` where several slurmds run, in ``system.slice``
    or in the slice that CgroupSlice= names (src/plugins/cgroup/v2). Only root's counts: threat 14.
    """
    own = f"{node}_{SCOPE}"
    scopes = [path for path in _scopes(tree) if path.rpartition("/")[2] in (SCOPE, own)]
    named = [path for path in scopes if path.endswith(f"/{own}")]
    in_use = [path for path in named or scopes if tree.populated(tree.resolve(path))]
    return next(iter(in_use or named or scopes), None)


def _scopes(tree: CgroupTree) -> Iterator[str]:
    for outer in _children(tree, "/"):
        for path in _children(tree, f"/{outer}"):
            if path.endswith(SCOPE):
                yield f"/{outer}/{path}"


def _children(tree: CgroupTree, path: str) -> Sequence[str]:
    """The names of the cgroups in *path*, if that is root's."""
    ref = tree.resolve(path)
    if ref is None:
        return ()
    try:
        with tree.open(ref) as cgroup:
            return sorted(child_names(cgroup.fileno())) if cgroup.owner in (0, os.geteuid()) else ()
    except (FileNotFoundError, OutsideFault):
        return ()


@dataclass(frozen=True, slots=True)
class Task:
    """A task before its program starts, whose pidfd is the caller's to close, and the slurmstepd of it."""

    process: Peer
    stepd: int


def task_of(peer: Peer) -> Task:
    """The task that *peer*, its task-prolog or a child of that, runs for.

    It is the nearest of *peer*'s parents that still is the fork of root's slurmstepd, to become the program.

    Raises:
        NotAllowed: there is none, or the peer has ended.
    """
    pid = peer.pid
    for _ in range(GENERATIONS):
        parent = parent_of(pid)
        if parent is None or parent <= 1 or uids_of(parent) != (peer.uid,) * 4:
            break
        pid = parent
        if _runs_stepd(pid):
            return _held(peer, pid)
    raise NotAllowed("only a task-prolog that Slurm started for a task may ask this")


def _held(peer: Peer, pid: int) -> Task:
    pidfd, stepd = pidfd_open(pid), parent_of(pid)
    process = Peer(pid, peer.uid, peer.gid, peer.groups, pidfd)
    # Looked at again behind the descriptor; and a child of root's daemon is no copy that a user started.
    if stepd is None or not _runs_stepd(pid) or not _same_program(pid, stepd) or not is_slurmstepd(stepd):
        process.close()
        raise NotAllowed(f"process {pid} is no task that Slurm started")
    if not peer.alive():
        process.close()
        raise NotAllowed("the process that asked has ended")
    return Task(process, stepd)


def _runs_stepd(pid: int) -> bool:
    try:
        program = (PROC / str(pid) / "exe").readlink()
    except OSError:
        return False
    name = program.name.removesuffix(" (deleted)")
    return name.partition("-")[0] == STEPD  # Debian's is slurmstepd-wlm


def _same_program(pid: int, other: int) -> bool:
    try:
        return (PROC / str(pid) / "exe").samefile(PROC / str(other) / "exe")
    except OSError:
        return False
