"""Who is at the other end of a unix socket. From the kernel only: no header and no name service is asked."""

from __future__ import annotations

import errno
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from nodeagent.adapters import systemcalls
from nodeagent.adapters.processes import PROC, pidfd_alive, pidfd_open, uids_of

SO_PEERGROUPS = 59
SO_PEERPIDFD = 77

_UCRED = struct.Struct("iII")
_GID = struct.Struct("I")
_GROUPS_MAX = 65536  # NGROUPS_MAX
_NO_OPTION = -1


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected, with its credentials of that moment. Owns *pidfd*: close it.

    *pid* is 0 where the peer's pid namespace is not below the agent's. *pidfd* is None once the peer is gone.
    """

    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...]  # the supplementary ones
    pidfd: int | None

    def alive(self) -> bool:
        """Whether the process that connected still runs, so that *pid* still means it."""
        return self.pidfd is not None and pidfd_alive(self.pidfd)

    def close(self) -> None:
        """Give the pidfd back. Call it once."""
        if self.pidfd is not None:
            os.close(self.pidfd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def peer_of(sock: socket.socket, *, kernel_gives_pidfd: bool = True) -> Peer:
    """Ask the kernel who connected to *sock*; *kernel_gives_pidfd* False acts as on kernels before 6.5."""
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    pidfd = _peer_pidfd(sock) if kernel_gives_pidfd else _NO_OPTION
    if pidfd == _NO_OPTION:
        pidfd = _pidfd_by_pid(pid, uid)
    return Peer(pid=pid, uid=uid, gid=gid, groups=_peer_groups(sock), pidfd=pidfd)


def administrator(peer: Peer, *, admin_gid: int | None) -> bool:
    """Whether *peer* may administer: uid 0 or in *admin_gid*, and no container's root.

    A container's root is host uid 0 where it has no user namespace, so the peer must share the agent's
    user and pid namespaces and root directory, too, read while its pidfd shows that the pid still means it.
    """
    privileged = peer.uid == 0 or (admin_gid is not None and admin_gid in (peer.gid, *peer.groups))
    if not privileged or peer.pid <= 0:
        return False
    same = all(
        _same_file(PROC / str(peer.pid) / name, PROC / "self" / name)
        for name in ("ns/user", "ns/pid", "root")
    )
    # Last: a peer alive now was alive during the reads above.
    return same and peer.alive()


def _same_file(left: Path, right: Path) -> bool:
    try:
        one, other = left.stat(), right.stat()
    except OSError:
        return False
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _peer_groups(sock: socket.socket) -> tuple[int, ...]:
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 1024)
    except OSError as fault:
        if fault.errno != errno.ERANGE:
            raise
        raw = systemcalls.getsockopt(sock.fileno(), socket.SOL_SOCKET, SO_PEERGROUPS, _GROUPS_MAX * _GID.size)
    return tuple(gid for (gid,) in _GID.iter_unpack(raw))


def _peer_pidfd(sock: socket.socket) -> int | None:
    """None: the peer is gone. `_NO_OPTION`: the kernel is older than 6.5."""
    try:
        return sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as fault:
        if fault.errno == errno.ENOPROTOOPT:
            return _NO_OPTION
        # ESRCH or EINVAL, by kernel version, once the peer is reaped; ENODATA where it never was one.
        if fault.errno in (errno.ESRCH, errno.EINVAL, errno.ENODATA):
            return None
        raise


def _pidfd_by_pid(pid: int, uid: int) -> int | None:
    """Open by number, then look whether that process can be the one that connected.

    Weaker than SO_PEERPIDFD: another process of the same uid that got the pid meanwhile passes.
    """
    pidfd = pidfd_open(pid)
    if pidfd is None:
        return None
    uids = uids_of(pid)
    if uids is None or uid not in uids:
        os.close(pidfd)
        return None
    return pidfd
