"""POSIX ACLs of device nodes, read and written without following links.

The attribute ``system.posix_acl_access`` as in include/uapi/linux/posix_acl_xattr.h: little endian, a version
(2), then entries of tag, permissions and id, sorted by tag and id. An ACL without named entries is a mode.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain.errors import OutsideFault

ATTRIBUTE = "system.posix_acl_access"
READ_WRITE = 6
_VERSION, _NO_ID = 2, 0xFFFFFFFF
_OWNER, _USER, _GROUP, _NAMED_GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20


@dataclass(frozen=True, slots=True)
class Acl:
    """Who may do what; permissions are 0 to 7 (read 4, write 2). *mask* is None without named entries."""

    owner: int
    group: int
    other: int
    mask: int | None = None
    users: Mapping[int, int] = field(default_factory=dict)
    groups: Mapping[int, int] = field(default_factory=dict)

    def grants(self, uid: int) -> bool:
        """Whether the entry of *uid* itself lets it read and write."""
        allowed = self.users.get(uid, 0) & (7 if self.mask is None else self.mask)
        return allowed & READ_WRITE == READ_WRITE


def encode(acl: Acl) -> bytes:
    entries = [(_OWNER, acl.owner, _NO_ID)]
    entries += [(_USER, allowed, uid) for uid, allowed in sorted(acl.users.items())]
    entries += [(_GROUP, acl.group, _NO_ID)]
    entries += [(_NAMED_GROUP, allowed, gid) for gid, allowed in sorted(acl.groups.items())]
    entries += [] if acl.mask is None else [(_MASK, acl.mask, _NO_ID)]
    entries += [(_OTHER, acl.other, _NO_ID)]
    return struct.pack("<I", _VERSION) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def decode(value: bytes) -> Acl:
    """Raises ValueError for what is no ACL of version 2."""
    if len(value) % 8 != 4 or struct.unpack_from("<I", value)[0] != _VERSION:
        raise ValueError("no ACL of version 2")
    plain: dict[int, int] = {}
    users: dict[int, int] = {}
    groups: dict[int, int] = {}
    for tag, allowed, who in struct.iter_unpack("<HHI", value[4:]):
        if tag == _USER:
            users[who] = allowed
        elif tag == _NAMED_GROUP:
            groups[who] = allowed
        else:
            plain[tag] = allowed
    return Acl(
        plain.get(_OWNER, 0), plain.get(_GROUP, 0), plain.get(_OTHER, 0), plain.get(_MASK), users, groups
    )


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node by its path, and what it must be: a character device of this major and minor."""

    path: Path
    major: int
    minor: int

    def read(self) -> Acl:
        """Its ACL, or its mode as one. Raises OutsideFault where it is no such device."""
        with self._opened() as (at, status):
            try:
                return decode(os.getxattr(at, ATTRIBUTE))
            except OSError as fault:
                if fault.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
                    raise outside_fault(self.path, fault) from fault
            except ValueError as fault:
                raise OutsideFault(self.path, str(fault)) from fault
            mode = stat.S_IMODE(status.st_mode)
            return Acl(mode >> 6 & 7, mode >> 3 & 7, mode & 7)

    def write(self, acl: Acl) -> None:
        """Set *acl*. Raises OutsideFault where it is no such device, or its file system has no ACLs."""
        with self._opened() as (at, _):
            try:
                os.setxattr(at, ATTRIBUTE, encode(acl))
            except OSError as fault:
                raise outside_fault(
                    self.path, fault, EOPNOTSUPP="its file system keeps no POSIX ACLs"
                ) from fault

    @contextmanager
    def _opened(self) -> Iterator[tuple[str, os.stat_result]]:
        # O_PATH neither follows a link nor opens the device; the ACL is reached through the descriptor.
        try:
            descriptor = os.open(self.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as fault:
            raise outside_fault(self.path, fault) from fault
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISCHR(status.st_mode) or status.st_rdev != os.makedev(self.major, self.minor):
                raise OutsideFault(self.path, f"is not the character device {self.major}:{self.minor}")
            yield f"/proc/self/fd/{descriptor}", status
        finally:
            os.close(descriptor)
