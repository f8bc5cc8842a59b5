"""The site's classes: which of them a caller's request is of, and what that allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nodeagent.domain.classes import NO_CLASS, Class
from nodeagent.domain.clock import SECOND_NS
from nodeagent.domain.errors import InvalidField
from nodeagent.domain.lease import HolderKind, Lease
from nodeagent.domain.quota import Breach
from nodeagent.domain.request import Priority, Request
from nodeagent.service.orders import Caller
from nodeagent.service.placing import Placed


class Classes:
    """*priority* is the highest that others than administrators may ask for without a class."""

    def __init__(
        self,
        classes: Sequence[Class] = (),
        owner_of: Callable[[int], int] = lambda uid: uid,
        priority: Priority = Priority.NORMAL,
    ) -> None:
        self._classes = {one.name: one for one in classes}
        self._owner_of = owner_of
        self._priority = priority

    def named(self, caller: Caller, name: str | None, kind: HolderKind) -> Class:
        """The class of a request: the one that it names, or the first default one that *caller* may name.

        Raises InvalidField where it may not name that one, or has to name one. Administrators may name each,
        and need to name none.
        """
        usable = self.usable(caller, kind)
        if name is not None:
            found = next((one for one in usable if one.name == name), None)
            if found is None:
                raise InvalidField("class_name", f"{name} is no class of yours: {_listed(usable)}")
            return found
        if caller.administrator:
            return NO_CLASS
        if found := next((one for one in usable if one.default), None):
            return found
        if any(one.default for one in self._classes.values()):
            raise InvalidField("class_name", f"has to be said: {_listed(usable)}")
        return NO_CLASS

    def usable(self, caller: Caller, kind: HolderKind | None = None) -> tuple[Class, ...]:
        """The classes that *caller* may name, for a holder of *kind* or of any."""
        uid, groups = self._owner_of(caller.uid), {caller.gid, *caller.groups}
        every = self._classes.values()
        return tuple(one for one in every if caller.administrator or one.open_to(uid, groups, kind))

    def of(self, request: Request) -> Class:
        """The class that *request* is of; none where there is no such any more."""
        return self._classes.get(request.class_name or "", NO_CLASS)

    def over(self, request: Request, placed: Placed) -> Breach | None:
        """What *placed* would be too much of for the class of *request*."""
        return self.of(request).over(placed)

    def most_priority(self, request: Request) -> Priority:
        """The highest priority that *request* may have."""
        return self.of(request).priority or self._priority

    def latest_ns(self, lease: Lease) -> int | None:
        """Until when *lease* may be renewed at most; None: for ever."""
        most = self.of(lease.request).max_ttl_seconds
        return None if most is None else lease.created_ns + most * SECOND_NS


def _listed(classes: Sequence[Class]) -> str:
    return f"you may name {', '.join(one.name for one in classes)}" if classes else "there is none for you"
