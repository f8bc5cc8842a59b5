"""Users and groups as numbers. Asks the name service: for a start, no request."""

from __future__ import annotations

import grp
import pwd


def uid_of(user: str) -> int | None:
    """The user as a number; None: none, or no such one."""
    if user.isascii() and user.isdigit():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid if user else None
    except (KeyError, ValueError):
        return None


def gid_of(group: str) -> int | None:
    """The group as a number; None: none, or no such one."""
    if group.isascii() and group.isdigit():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid if group else None
    except (KeyError, ValueError):
        return None


def members_of(gid: int) -> frozenset[int]:
    """Who belongs to a group, as far as the databases list it: they need not list everybody."""
    try:
        named = [uid_of(name) for name in grp.getgrgid(gid).gr_mem]
    except KeyError:
        named = []
    first = [user.pw_uid for user in pwd.getpwall() if user.pw_gid == gid]
    return frozenset(uid for uid in (*named, *first) if uid is not None)
