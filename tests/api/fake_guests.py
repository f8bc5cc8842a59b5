"""The fake agent's part of containers in leases that were not taken for them."""

from __future__ import annotations

from typing import Any, ClassVar

from nodeagent.domain.errors import NotAllowed
from nodeagent.domain.lease import Lease
from nodeagent.domain.refusals import Refusal
from nodeagent.service.container_view import ContainerView
from nodeagent.service.guest_records import Guest
from nodeagent.service.hosting import GuestOrder, Hosted
from nodeagent.service.orders import Caller


class FakeGuests:
    """Lets a container into each lease of the caller's that is there, or gives the agent's *outcome*."""

    calls: list[tuple[Any, ...]]
    outcome: Refusal | None
    view: ContainerView | None
    inside: ClassVar[list[Guest]] = []

    def _own(self, caller: Caller, lease_id: int) -> Lease:
        raise NotImplementedError

    def host(self, caller: Caller, lease_id: int, order: GuestOrder) -> Hosted | Refusal:
        self.calls.append(("host", order))
        if self.outcome is not None:
            return self.outcome
        if self.view is None:
            raise NotAllowed("this process does not run in that lease")
        return Hosted(lease_id, 3, self._own(caller, lease_id).guarantee, self.view, fresh=True)

    def guests(self, caller: Caller, lease_id: int) -> list[Guest]:
        self._own(caller, lease_id)
        return self.inside

    def give_back_guest(self, caller: Caller, lease_id: int, number: int) -> None:
        self.calls.append(("give_back_guest", number))
        self._own(caller, lease_id)
