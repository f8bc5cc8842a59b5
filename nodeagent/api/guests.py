"""Routes of containers in leases that were not taken for them."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

from nodeagent.api.answers import ContainersAnswer, GuestAnswer, InsideAnswer
from nodeagent.api.facade import Agent
from nodeagent.api.metrics import RefusalCounter
from nodeagent.api.models import GuestBody
from nodeagent.api.orders import guest_order_of
from nodeagent.api.present import Presenter
from nodeagent.api.query import GUEST_ID, LEASE_ID
from nodeagent.api.routes import Call, Promise, Reply, Route
from nodeagent.domain.errors import StaleLease, UnknownThing
from nodeagent.domain.refusals import Refusal


class GuestRoutes:
    """Turns calls about guests into use cases."""

    def __init__(self, agent: Agent, presenter: Presenter, refusals: RefusalCounter) -> None:
        self._agent = agent
        self._presenter = presenter
        self._refusals = refusals

    def host(self, call: Call) -> Reply:
        order = guest_order_of(cast(GuestBody, call.body))
        outcome = self._agent.host(call.caller, call.path["id"], order)
        if isinstance(outcome, Refusal):
            self._refusals.count(outcome.code)
            return Reply(self._presenter.refusal(outcome), 409)
        return Reply(self._presenter.guest(outcome), 201 if outcome.fresh else 200)

    def inside(self, call: Call) -> Reply:
        found = self._agent.guests(call.caller, call.path["id"])
        inside = [
            InsideAnswer(
                id=one.number,
                engine=one.held.engine,
                container=one.held.id,
                state=one.state,
                reason=one.ending,
            )
            for one in found
        ]
        return Reply(ContainersAnswer(containers=inside))

    def give_back(self, call: Call) -> Reply:
        with suppress(UnknownThing, StaleLease):  # it is gone, which is what was asked for
            self._agent.give_back_guest(call.caller, call.path["id"], call.path["guest"])
        return Reply(None, 204)

    def routes(self) -> tuple[Route, ...]:
        containers = "/v1/leases/{id}/containers"
        return (
            Route(
                "GET",
                containers,
                "listContainers",
                "The containers in a lease that was not taken for them.",
                self.inside,
                {200: Promise("For the lease's holder, and administrators.", ContainersAnswer)},
                problems=(403, 404, 503),
                path_parameters=(LEASE_ID,),
            ),
            Route(
                "POST",
                containers,
                "hostContainer",
                "Let a container of the caller's into the lease that the caller runs in.",
                self.host,
                {
                    200: Promise("What the same request got before.", GuestAnswer),
                    201: Promise("What the container is to be started with.", GuestAnswer),
                },
                problems=(403, 404, 409, 410, 429, 503),
                path_parameters=(LEASE_ID,),
                body=GuestBody,
                body_required=True,
            ),
            Route(
                "DELETE",
                f"{containers}/{{guest}}",
                "giveBackContainer",
                "End a container in a lease, and what it was given; the lease goes on.",
                self.give_back,
                {204: Promise("It is ended, was so before, or never was.")},
                problems=(403, 429, 503),
                path_parameters=(LEASE_ID, GUEST_ID),
            ),
        )
