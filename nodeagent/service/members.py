"""Who belongs to the groups that the site's settings name: as listed at the start, or as seen since."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

from nodeagent.domain.lease import HolderKind, Lease
from nodeagent.domain.ownership import Asker
from nodeagent.service.orders import Caller, Order


class Members:
    """*listed*: by group, who the group database says is in it.

    Whoever asks brings its groups along, of which the database need not tell: these are remembered, so that
    nobody leaves a group's quota by asking without it.
    """

    def __init__(self, listed: Mapping[int, Collection[int]]) -> None:
        self._uids = {group: set(uids) for group, uids in listed.items()}
        self._lock = threading.Lock()

    def note(self, uid: int, groups: Collection[int]) -> None:
        """*uid* asks as one of *groups*."""
        with self._lock:
            for group in self._uids.keys() & groups:
                self._uids[group].add(uid)

    def of(self, uid: int, gid: int | None) -> frozenset[int]:
        """The groups of *uid* that the settings name; *gid* is that which its process has."""
        with self._lock:
            return frozenset(group for group, uids in self._uids.items() if uid in uids or gid == group)


class Askers:
    """Says who asks for a lease: what devices that are reserved for some go by."""

    def __init__(self, members: Members, owner_of: Callable[[int], int]) -> None:
        self._members = members
        self._owner_of = owner_of

    def of(self, caller: Caller, order: Order) -> Asker:
        """Of what *caller* orders: its user, or whose the lease is to be."""
        if order.behalf is None:
            self._members.note(self._owner_of(caller.uid), {caller.gid, *caller.groups})
        whose = order.behalf or caller
        return self._asker(order.holder_kind, whose.uid, whose.gid, caller.administrator)

    def waiting(self, lease: Lease) -> Asker:
        """Of a lease that waits: whoever asked for it, it gets what its holder may have."""
        return self._asker(lease.holder.kind, lease.holder.uid, lease.gid, False)

    def _asker(self, kind: HolderKind, uid: int, gid: int | None, administrator: bool) -> Asker:
        owner = self._owner_of(uid)
        return Asker(kind, administrator, owner, self._members.of(owner, gid))
