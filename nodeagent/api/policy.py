"""Routes about what the site lets the caller have."""

from __future__ import annotations

from nodeagent.api.facade import Agent
from nodeagent.api.policy_answers import BoundAnswer, ClassAnswer, ClassesAnswer, QuotaAnswer, QuotasAnswer
from nodeagent.api.routes import Call, Promise, Reply, Route
from nodeagent.domain.classes import Class
from nodeagent.domain.quota import Resource
from nodeagent.service.quota_rules import Allotment


class PolicyRoutes:
    """Turns calls about quotas and classes into use cases."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def quotas(self, call: Call) -> Reply:
        return Reply(QuotasAnswer(quotas=[_quota(one) for one in self._agent.quotas(call.caller)]))

    def classes(self, call: Call) -> Reply:
        return Reply(ClassesAnswer(classes=[_class(one) for one in self._agent.classes(call.caller)]))

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
            Route(
                "GET",
                "/v1/classes",
                "listClasses",
                "The classes that the caller's requests may name.",
                self.classes,
                {200: Promise("In the site's order.", ClassesAnswer)},
            ),
        )


def _quota(one: Allotment) -> QuotaAnswer:
    bounds = [
        BoundAnswer(resource=resource, used=one.used.of(resource), most=most)
        for resource in Resource
        if (most := one.quota.limits.of(resource)) is not None
    ]
    return QuotaAnswer(name=one.quota.name, bounds=bounds)


def _class(one: Class) -> ClassAnswer:
    each, require = one.each, one.require
    demanded = {
        "memory": require.memory,
        "compute": require.compute,
        "visibility": require.visibility,
        "ipc": require.ipc,
    }
    return ClassAnswer(
        name=one.name,
        default=one.default,
        kinds=sorted(one.kinds),
        vram_bytes=each.vram_bytes,
        vram_percent=each.vram_percent,
        cus=each.cus,
        cu_percent=each.cu_percent,
        cu_shared=each.cu_shared,
        queue_slots=each.queue_slots,
        shape=each.shape,
        placement=one.placement,
        ttl_seconds=one.ttl_seconds,
        max_vram_bytes=one.limits.vram_bytes,
        max_cus=one.limits.cus,
        max_queue_slots=one.limits.queue_slots,
        max_ttl_seconds=one.max_ttl_seconds,
        priority=one.priority,
        require={kind: level.value for kind, level in demanded.items() if level is not None},
    )
