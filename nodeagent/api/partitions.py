"""Routes of cards: an administrator's look at their partition modes, and the change of one."""

from __future__ import annotations

from typing import cast

from nodeagent.api.answers import CardAnswer, CardsAnswer
from nodeagent.api.facade import Agent
from nodeagent.api.metrics import RefusalCounter
from nodeagent.api.models import PartitionBody
from nodeagent.api.present import Presenter
from nodeagent.api.query import pattern
from nodeagent.api.routes import Call, Promise, Reply, Route
from nodeagent.domain.partition import Card
from nodeagent.domain.refusals import Refusal

LONGEST_WAIT = 4.0  # seconds: no request holds its thread over five
_PCI = pattern("pci", r"^[A-Za-z0-9._:-]{1,64}$", "The card's PCI address, with its domain.")


class PartitionRoutes:
    """Turns calls about cards into use cases."""

    def __init__(self, agent: Agent, presenter: Presenter, refusals: RefusalCounter) -> None:
        self._agent = agent
        self._presenter = presenter
        self._refusals = refusals

    def list_all(self, call: Call) -> Reply:
        found = self._agent.partitions.cards(call.caller)
        return Reply(CardsAnswer(cards=[_card(card) for card in found], next=None))

    def switch(self, call: Call) -> Reply:
        mode = cast(PartitionBody, call.body).mode
        outcome = self._agent.partitions.switch(call.caller, call.path["pci"], mode, LONGEST_WAIT)
        if isinstance(outcome, Refusal):
            self._refusals.count(outcome.code)
            return Reply(self._presenter.refusal(outcome), 409)
        return Reply(_card(outcome), 202 if outcome.switching else 200)

    def routes(self) -> tuple[Route, ...]:
        return (
            Route(
                "GET",
                "/v1/partitions",
                "listPartitions",
                "Every card with the partition modes that it has and can take.",
                self.list_all,
                {200: Promise("All cards.", CardsAnswer)},
                problems=(403, 503),
                administrators=True,
            ),
            Route(
                "POST",
                "/v1/cards/{pci}/partition",
                "partitionCard",
                "Put a card that nobody uses into another compute partition mode.",
                self.switch,
                {
                    200: Promise("It is in that mode, read twice.", CardAnswer),
                    202: Promise("The kernel has not shown all of it yet: look again.", CardAnswer),
                },
                problems=(403, 404, 409, 503),
                path_parameters=(_PCI,),
                body=PartitionBody,
                body_required=True,
                administrators=True,
            ),
        )


def _card(card: Card) -> CardAnswer:
    modes = card.modes
    return CardAnswer(
        pci=card.pci,
        product=card.product,
        gfx=card.gfx,
        compute_partition=modes.compute,
        compute_partitions=list(modes.computes),
        memory_partition=modes.memory,
        memory_partitions=list(modes.memories),
        memory_alloc_mode=modes.alloc,
        switching=card.switching,
        devices=[device.key for device in card.devices],
    )
