"""Placement as the service needs it: searched before the ledger's lock, and true when it is booked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodeagent.domain.device import Inventory
from nodeagent.domain.environment import guarantee_of
from nodeagent.domain.lease import HeldSlice, PlacedSlice
from nodeagent.domain.placement import place
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.request import Request

Placed = tuple[PlacedSlice, ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """What a search found, and what it saw held. *placed* is empty where the request may wait its turn."""

    inventory: Inventory
    request: Request
    may_wait: bool
    held: tuple[HeldSlice, ...]
    placed: Placed | Refusal

    def holds(self, held: Sequence[HeldSlice]) -> bool:
        """Whether it may be booked beside *held*: what gives no slices needs no second look."""
        if isinstance(self.placed, Refusal) or not self.placed:
            return True
        return [one.placed for one in held] == [one.placed for one in self.held]


class Placer:
    """Searches slices for requests. A search may take long, so it runs without the lock that all need."""

    def __init__(self, shared_cu_percent: float) -> None:
        self._shared_cu_percent = shared_cu_percent

    def draft(
        self,
        inventory: Inventory,
        held: tuple[HeldSlice, ...],
        request: Request,
        *,
        may_wait: bool = False,
    ) -> Draft:
        """Search beside *held*; a request that *may_wait* is refused only if it could never fit."""
        placed = self._place(inventory, held, request)
        if isinstance(placed, Refusal) and may_wait:
            never = self._place(inventory, (), request)
            placed = never if isinstance(never, Refusal) else ()
        return Draft(inventory, request, may_wait, held, placed)

    def settle(self, draft: Draft, held: tuple[HeldSlice, ...]) -> Placed | Refusal:
        """What *draft* gives, or what can be given now if others than it saw are *held* by now."""
        if not draft.holds(held):
            draft = self.draft(draft.inventory, held, draft.request, may_wait=draft.may_wait)
        return draft.placed

    def _place(self, inventory: Inventory, held: Sequence[HeldSlice], request: Request) -> Placed | Refusal:
        """Slices beside those *held* that meet the request's floor."""
        placed = place(inventory, held, request, shared_cu_percent=self._shared_cu_percent)
        if isinstance(placed, Refusal):
            return placed
        unmet = request.require.unmet(guarantee_of(placed, inventory))
        if unmet:
            return Refusal(
                Code.GUARANTEE_NOT_MET,
                f"this node cannot hold the asked floor of {', '.join(unmet)} for such a slice",
                "ask for less with --require, or see `nodeagent status` for what the node has",
            )
        return placed
