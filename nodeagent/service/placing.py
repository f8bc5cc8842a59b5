"""Placement as the service needs it: searched before the ledger's lock, and true when it is booked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nodeagent.domain.container import Container
from nodeagent.domain.device import Inventory
from nodeagent.domain.lease import HeldSlice, PlacedSlice
from nodeagent.domain.ownership import Asker
from nodeagent.domain.placement import place
from nodeagent.domain.queue import Ground, Reservation, kept_back, leaves, narrowed, unkept
from nodeagent.domain.refusals import Code, DeviceRefusal, Refusal
from nodeagent.domain.request import Request
from nodeagent.service.plan import Planner

Placed = tuple[PlacedSlice, ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """What a search found, and what it saw held. *placed* is empty where the request may wait its turn.

    *kept*: what those before it wait for; *ends_ns*: when it would end, if that is known.
    """

    uid: int
    asker: Asker
    inventory: Inventory
    request: Request
    may_wait: bool
    adopted: bool
    held: tuple[HeldSlice, ...]
    placed: Placed | Refusal
    container: Container | None = None
    kept: tuple[Reservation, ...] = ()
    ends_ns: int | None = None
    alone: Placed = ()  # for one that waits: what it would be given if nothing were held

    @property
    def size(self) -> Placed:
        """What it comes to, now or in its turn."""
        return self.alone if isinstance(self.placed, Refusal) else self.placed or self.alone

    def holds(self, held: Sequence[HeldSlice]) -> bool:
        """Whether it may be booked beside *held*: what gives no slices needs no second look."""
        if isinstance(self.placed, Refusal) or not self.placed:
            return True
        return held is self.held or [one.placed for one in held] == [one.placed for one in self.held]


class Placer:
    """Searches slices for requests. A search may take long, so it runs without the lock that all need."""

    def __init__(
        self, planner: Planner, shared_cu_percent: float, closed: Callable[[str], str | None]
    ) -> None:
        self._planner = planner
        self._shared_cu_percent = shared_cu_percent
        self._closed = closed  # by PCI address: why nothing is booked on a card, as of now

    def draft(
        self,
        uid: int,
        asker: Asker,
        inventory: Inventory,
        held: tuple[HeldSlice, ...],
        request: Request,
        *,
        may_wait: bool = False,
        adopted: bool = False,
        container: Container | None = None,
        kept: tuple[Reservation, ...] = (),
        ends_ns: int | None = None,
    ) -> Draft:
        """Search beside *held* for *uid*; a request that *may_wait* is refused only if it could never fit.

        What is *kept* for those who wait is taken only where that does not delay them. Nobody waits for
        another owner's device: who may take it by name gets it at once or not.
        """
        draft = Draft(uid, asker, inventory, request, may_wait, adopted, held, (), container, kept, ends_ns)
        return self._searched(draft)

    def settle(self, draft: Draft, held: tuple[HeldSlice, ...]) -> Placed | Refusal:
        """What *draft* gives, or what can be given now if others than it saw are *held* by now."""
        if not draft.holds(held):
            draft = self._searched(replace(draft, held=held))
        refusal = self._refused(draft)
        if refusal is None:
            return draft.placed
        return () if draft.may_wait else refusal

    def _refused(self, draft: Draft) -> Refusal | None:
        """Where a card that the search chose was closed since: its devices are gone soon."""
        if isinstance(draft.placed, Refusal):
            return None
        devices = [draft.inventory.device(one.device) for one in draft.placed]
        told = {one.key: why for one in devices if one is not None and (why := self._closed(one.pci))}
        if not told:
            return None
        refused = tuple(DeviceRefusal(key, Code.CARD_CORDONED, why) for key, why in told.items())
        return Refusal(Code.CARD_CORDONED, next(iter(told.values())), "ask again in a moment", refused)

    def _searched(self, draft: Draft) -> Draft:
        placed = self._in_turn(draft)
        if isinstance(placed, Refusal) and draft.may_wait:
            waiting = replace(draft, asker=replace(draft.asker, administrator=False))
            alone = self._place(waiting, ())
            if not isinstance(alone, Refusal):
                return replace(draft, placed=(), alone=alone)
            placed = alone
        return replace(draft, placed=placed)

    def _in_turn(self, draft: Draft) -> Placed | Refusal:
        """Slices that delay nobody who waits: where nothing is kept, else where it is not needed in time."""
        if draft.kept:
            elsewhere = narrowed(draft.inventory, unkept(draft.inventory, draft.kept))
            placed = self._place(replace(draft, inventory=elsewhere), draft.held)
            if not isinstance(placed, Refusal):
                return placed
        placed = self._place(draft, draft.held)
        if isinstance(placed, Refusal):
            return placed
        ground = Ground(draft.inventory, self._shared_cu_percent)
        harmed = [one for one in draft.kept if not leaves(one, ground, draft.held, placed, draft.ends_ns)]
        return kept_back(harmed) if harmed else placed

    def _place(self, draft: Draft, held: Sequence[HeldSlice]) -> Placed | Refusal:
        """Slices beside those *held* that meet the request's floor and the site's."""
        placed = place(
            draft.inventory,
            held,
            draft.request,
            shared_cu_percent=self._shared_cu_percent,
            asker=draft.asker,
        )
        if isinstance(placed, Refusal):
            return placed
        unmet = self._planner.unmet(
            draft.uid,
            draft.request,
            placed,
            draft.inventory,
            adopted=draft.adopted,
            container=draft.container,
        )
        if unmet:
            return Refusal(
                Code.GUARANTEE_NOT_MET,
                f"this node cannot hold such a slice as demanded: {'; '.join(unmet)}",
                "ask for less with --require, down to the site's floor, or have an administrator mend that",
            )
        return placed
