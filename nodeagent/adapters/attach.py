"""Move a connected peer into a lease's cgroup: itself only, and only while it cannot have become another."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from nodeagent.adapters.cgroup import CgroupTree, OpenCgroup, nest_below
from nodeagent.adapters.limits import effective_limits, loosens
from nodeagent.adapters.peer import Peer
from nodeagent.adapters.processes import leads_its_group, start_time_of, uids_of
from nodeagent.domain.errors import NotAllowed


@dataclass(frozen=True, slots=True)
class Attached:
    """The process that was moved, and where it came from."""

    pid: int
    start_time: int  # clock ticks since boot
    previous: str | None  # its cgroup before; None where that is not below the mount


def attach(
    tree: CgroupTree,
    cgroup: OpenCgroup,
    peer: Peer,
    *,
    gpu_in_use: Callable[[int], bool],
    leaves: str | None = None,
) -> Attached:
    """Move *peer* into *cgroup*; a peer that is in it or below it already stays.

    *leaves* is a cgroup that the peer may leave: of the daemon that started it, and confines it to nothing.

    Raises:
        NotAllowed: the peer is gone, is no longer the user that connected, holds GPU memory already, or would
            leave a job, container or limit that it must stay in.
        OutsideFault: the kernel refuses.
    """
    check_identity(peer)
    previous = tree.cgroup_of(peer.pid)
    if not _inside(cgroup, previous):
        check_confinement(tree, cgroup, previous, leaves)
        _check_gpu(peer, gpu_in_use)
        _move(tree, cgroup, peer, previous, gpu_in_use)
    start_time = start_time_of(peer.pid)
    if start_time is None or not peer.alive():
        raise NotAllowed(f"process {peer.pid} ended")
    return Attached(pid=peer.pid, start_time=start_time, previous=previous)


def _move(
    tree: CgroupTree,
    cgroup: OpenCgroup,
    peer: Peer,
    previous: str | None,
    gpu_in_use: Callable[[int], bool],
) -> None:
    try:
        cgroup.move(peer.pid)
    except ProcessLookupError:
        raise NotAllowed(f"process {peer.pid} ended") from None
    try:
        # The kernel moves by number, so only now is it known whom: again the peer, or somebody else.
        check_identity(peer)
        _check_gpu(peer, gpu_in_use)
    except NotAllowed:
        _move_back(tree, cgroup, peer.pid, previous)
        raise


def check_identity(peer: Peer) -> None:
    """Refuse a process that is not the peer or not (any more) the user that connected: threat 8."""
    if peer.pid <= 1:
        raise NotAllowed("the peer has no pid that the agent sees" if peer.pid <= 0 else "pid 1 stays")
    if peer.pid == os.getpid():
        raise NotAllowed("the agent does not attach itself")
    if not leads_its_group(peer.pid):
        raise NotAllowed(f"{peer.pid} is no process, or it ended")
    uids = uids_of(peer.pid)
    if uids is None or set(uids) != {peer.uid}:
        raise NotAllowed(f"process {peer.pid} has other uids than when it connected: it ran a setuid program")
    # Last: alive now, it was the process behind the pid during the reads above.
    if not peer.alive():
        raise NotAllowed("the process that connected has ended; the one to attach must connect itself")


def _check_gpu(peer: Peer, gpu_in_use: Callable[[int], bool]) -> None:
    if gpu_in_use(peer.pid):
        raise NotAllowed(
            f"process {peer.pid} uses the GPU already, and what it holds is charged elsewhere: "
            "attach before it opens the GPU, or adopt it"
        )


def check_confinement(
    tree: CgroupTree, cgroup: OpenCgroup, previous: str | None, leaves: str | None = None
) -> None:
    """Refuse to take the peer out of a job or container, or from under a limit: threat 9."""
    if previous is None:
        raise NotAllowed("the peer's cgroup is not below the agent's cgroup2 mount")
    confines = nest_below(previous)
    if confines not in (None, leaves) and not f"{cgroup.path}/".startswith(f"{confines}/"):
        raise NotAllowed(
            f"the peer is confined to {confines}; take the lease from in there, so that it nests"
        )
    loosened = loosens(effective_limits(tree, previous), effective_limits(tree, cgroup.path))
    if loosened:
        raise NotAllowed(f"the lease's cgroup would loosen the peer's {', '.join(loosened)}")


def _inside(cgroup: OpenCgroup, path: str | None) -> bool:
    return path is not None and f"{path}/".startswith(f"{cgroup.path}/")


def _move_back(tree: CgroupTree, cgroup: OpenCgroup, pid: int, previous: str | None) -> None:
    """Undo the move of *pid*, if it is in *cgroup*. Its old cgroup gone, it stays: the fault says so."""
    if previous is None or pid not in cgroup.procs():
        return
    ref = tree.resolve(previous)
    if ref is None:
        raise NotAllowed(f"process {pid} was moved, may not stay, and its old cgroup {previous} is gone")
    try:
        with tree.open(ref) as old:
            old.move(pid)
    except (ProcessLookupError, FileNotFoundError):
        return
