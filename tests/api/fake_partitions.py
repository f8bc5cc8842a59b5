"""The cards of a node that lives in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from nodeagent.domain.errors import UnknownThing
from nodeagent.domain.partition import Card, Modes, mode_of
from nodeagent.domain.refusals import Refusal
from nodeagent.service.orders import Caller
from nodeagent.service.rights import must_administer

from .api_inventory import make_device

PCI = "0000:c1:00.0"


@dataclass
class FakePartitions:
    """One card, which takes every mode that it has, at once or *later*; or gives *outcome*."""

    card: Card = field(
        default_factory=lambda: Card(
            PCI,
            "AMD Instinct MI300X",
            "gfx942",
            Modes("SPX", ("SPX", "DPX", "TPX", "QPX", "CPX"), "NPS1", ("NPS1", "NPS4"), "CAPPING"),
            (make_device(PCI, 0),),
        )
    )
    outcome: Refusal | None = None
    later: bool = False
    waits: list[float] = field(default_factory=list)

    def cards(self, caller: Caller) -> tuple[Card, ...]:
        must_administer(caller)
        return (self.card,)

    def switch(self, caller: Caller, pci: str, text: str, wait_seconds: float = 0) -> Card | Refusal:
        must_administer(caller)
        if pci != self.card.pci:
            raise UnknownThing(f"there is no card {pci}")
        mode = mode_of(text, self.card)
        self.waits.append(wait_seconds)
        if self.outcome is not None:
            return self.outcome
        if self.later:
            return replace(self.card, switching=mode)
        self.card = replace(self.card, modes=replace(self.card.modes, compute=mode))
        return self.card
