"""Routes about what the site lets the caller have."""

from __future__ import annotations

from nodeagent.api.answers import BoundAnswer, QuotaAnswer, QuotasAnswer
from nodeagent.api.facade import Agent
from nodeagent.api.routes import Call, Promise, Reply, Route
from nodeagent.domain.quota import Resource
from nodeagent.service.quota_rules import Allotment


class PolicyRoutes:
    """Turns calls about quotas into use cases."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def quotas(self, call: Call) -> Reply:
        return Reply(QuotasAnswer(quotas=[_quota(one) for one in self._agent.quotas(call.caller)]))

    def routes(self) -> tuple[Route, ...]:
        return (
            Route(
                "GET",
                "/v1/quotas",
                "listQuotas",
                "The quotas that hold for the caller, and what counts towards them now.",
                self.quotas,
                {200: Promise("The caller's own.", QuotasAnswer)},
                problems=(503,),
            ),
        )


def _quota(one: Allotment) -> QuotaAnswer:
    bounds = [
        BoundAnswer(resource=resource, used=one.used.of(resource), most=most)
        for resource in Resource
        if (most := one.quota.limits.of(resource)) is not None
    ]
    return QuotaAnswer(name=one.quota.name, bounds=bounds)
