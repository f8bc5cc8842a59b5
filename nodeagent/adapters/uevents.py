"""The kernel's announcements of device changes: a netlink socket, read with pyroute2's parser.

The socket is our own. pyroute2's (0.9.7) does not tell who sent a message, is another one in every thread,
and takes no more after one overflow.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.uevents import Uevent

NETLINK_KOBJECT_UEVENT = 15  # linux/netlink.h
KERNEL, KERNEL_GROUP = 0, 1  # netlink port and multicast group; group 2 is udev's
SO_RCVBUFFORCE = 33
BUFFER_BYTES = 4 << 20  # some 5,000 events: whole trees of devices come and go at once
LONGEST = 16 << 10  # UEVENT_BUFFER_SIZE is 2 KiB, with the path once more before it
AT_ONCE = 256  # messages of one reading: who else is watched has their turn
UCRED = struct.Struct("=iII")  # pid, uid, gid
ROOM_FOR_CREDENTIALS = socket.CMSG_SPACE(UCRED.size)
NS_GET_USERNS = 0xB701  # linux/nsfs.h
INITIAL_USERNS = 0xEFFFFFFD  # PROC_USER_INIT_INO


@dataclass(frozen=True, slots=True)
class Heard:
    """What one reading of the socket gave."""

    events: tuple[Uevent, ...] = ()
    lost: bool = False  # there was more, which nobody will ever read


class UeventSocket:
    """The kernel's multicast group.

    Opened before a fork, it is one queue of both processes, and only one of them is to read: what comes while
    one worker is replaced by another waits for that.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def open(self) -> int:
        """The descriptor, to be polled; it stays this object's. Again gives the same one.

        Raises:
            OutsideFault: the kernel has no such socket here, or no event ever reaches this network namespace.
        """
        if self._socket is not None:
            return self._socket.fileno()
        why = unheard()
        if why is not None:
            raise OutsideFault("uevents", why)
        try:
            made = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_KOBJECT_UEVENT)
        except OSError as fault:
            raise _fault(fault) from fault
        try:
            made.setblocking(False)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            _enlarge(made)
            made.bind((0, KERNEL_GROUP))
        except OSError as fault:
            made.close()
            raise _fault(fault) from fault
        self._socket = made
        return made.fileno()

    def close(self) -> None:
        """Again is harmless."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def read(self) -> Heard:
        """What has come, without waiting. Raises OutsideFault where nothing ever will again."""
        if self._socket is None:
            raise OutsideFault("uevents", "the socket is closed")
        events, lost = [], False
        for _ in range(AT_ONCE):
            try:
                data, told, flags, sender = self._socket.recvmsg(LONGEST, ROOM_FOR_CREDENTIALS)
            except BlockingIOError:
                break
            except OSError as fault:
                if fault.errno != errno.ENOBUFS:
                    raise _fault(fault) from fault
                lost = True  # the next reading works
                continue
            if not from_kernel(sender, _pid(told)):
                continue
            event = None if flags & socket.MSG_TRUNC else parse(data)
            lost = lost or event is None
            events += [event] if event else []
        return Heard(tuple(events), lost)


def from_kernel(sender: tuple[int, int], pid: int | None) -> bool:
    """Whether a message from this (port, groups) and *pid* is the kernel's own, and sent to its group.

    Others may send to the group, or to this socket alone: who has CAP_NET_ADMIN here, as root in a container
    does that shares the host's network. They have a port of their own (af_netlink.c). What somebody with
    CAP_SYS_ADMIN hands to the kernel, the kernel sends on from port 0 (uevent_net_broadcast() in
    lib/kobject_uevent.c), but with the pid of its author; the kernel's own has none.
    """
    port, groups = sender
    return port == KERNEL and groups == KERNEL_GROUP and pid == KERNEL


def parse(data: bytes) -> Uevent | None:
    """The event of one message; None where it is none that can be read."""
    # Late, for it loads 150 ms of other netlink families.
    from pyroute2.netlink.uevent import MarshalUevent  # type: ignore[import-untyped]

    try:
        return next((Uevent.of(fields) for fields in MarshalUevent().parse(data)), None)
    except (ValueError, KeyError, IndexError):  # not UTF-8, or cut
        return None


def unheard() -> str | None:
    """Why no event ever reaches this process, or None: they go to namespaces of the initial user's only.

    See uevent_net_init() in lib/kobject_uevent.c. Of a network that belongs to a user namespace above the
    caller's own nothing can be learned; it is taken for the host's.
    """
    try:
        descriptor = os.open(Path("/proc/self/ns/net"), os.O_RDONLY | os.O_CLOEXEC)
        try:
            owner = fcntl.ioctl(descriptor, NS_GET_USERNS)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    try:
        initial = os.fstat(owner).st_ino == INITIAL_USERNS
    finally:
        os.close(owner)
    return (
        None if initial else "the network namespace belongs to a user namespace: the kernel tells it nothing"
    )


def _pid(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """Who the kernel says sent it; None where it does not say."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) == UCRED.size:
            return int(UCRED.unpack(data)[0])
    return None


def _enlarge(made: socket.socket) -> None:
    """Past net.core.rmem_max where that is allowed; else as far as it goes."""
    try:
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    except PermissionError:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)


def _fault(fault: OSError) -> OutsideFault:
    return outside_fault(
        "uevents",
        fault,
        EAFNOSUPPORT="no netlink socket may be opened: see RestrictAddressFamilies= of the unit",
        EPROTONOSUPPORT="this kernel, or the sandbox in its place, has no uevent socket",
        EPERM="may not join the kernel's group: needs CAP_NET_ADMIN",
        EACCES="may not open a netlink socket",
    )
