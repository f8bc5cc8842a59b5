"""Routes about the node and the agent: node, caller, events, health, metrics, the API's description."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from nodeagent.api.answers import CallerAnswer, EventsAnswer, HealthAnswer, NodeAnswer
from nodeagent.api.facade import Agent
from nodeagent.api.fields import LARGEST_INTEGER, Body
from nodeagent.api.metrics import MEDIA_TYPE as METRICS
from nodeagent.api.models import DrainBody, EmptyBody
from nodeagent.api.present import Presenter
from nodeagent.api.problems import Unhealthy
from nodeagent.api.query import AFTER, LARGEST_PAGE, LIMIT, WAIT, whole
from nodeagent.api.routes import JSON, RETRY_AFTER, Call, Promise, Reply, Route
from nodeagent.api.waits import WaitingRoom
from nodeagent.service.orders import ANONYMOUS

_LEASE = whole("lease", 1, LARGEST_INTEGER, "Only what befell this lease.")
_NEWEST = whole("newest", 1, LARGEST_PAGE, "Only so many of them, the newest; at once, whatever wait says.")


class NodeRoutes:
    """Turns calls about the node into use cases."""

    def __init__(
        self,
        agent: Agent,
        presenter: Presenter,
        waiting: WaitingRoom,
        metrics: Callable[[], str],
        openapi: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._agent = agent
        self._presenter = presenter
        self._waiting = waiting
        self._metrics = metrics
        self._openapi = openapi

    def node(self, call: Call) -> Reply:
        return Reply(self._presenter.node(self._agent.node()))

    def caller(self, call: Call) -> Reply:
        caller = call.caller
        uid = None if caller.uid == ANONYMOUS else caller.uid
        return Reply(CallerAnswer(uid=uid, administrator=caller.administrator))

    def drain(self, call: Call) -> Reply:
        body = cast(DrainBody, call.body)
        node = self._agent.drain_node(call.caller, reason=body.reason, until_seconds=body.until_seconds)
        return Reply(self._presenter.node(node))

    def undrain(self, call: Call) -> Reply:
        return Reply(self._presenter.node(self._agent.undrain_node(call.caller)))

    def events(self, call: Call) -> Reply:
        after, wait, limit = call.query["after"], call.query["wait"], call.query["limit"]
        lease = call.query["lease"]
        headers: Mapping[str, str] = {}
        if call.query["newest"] is not None:
            found = self._agent.events(call.caller, after, 0, call.query["newest"], newest=True, lease=lease)
        elif wait:
            with self._waiting.seat(call.caller) as seated:
                found = self._agent.events(call.caller, after, wait if seated else 0, limit, lease=lease)
            headers = {} if seated else RETRY_AFTER
        else:
            found = self._agent.events(call.caller, after, 0, limit, lease=lease)
        shown = [self._presenter.event(event, call.viewer) for event in found]
        return Reply(EventsAnswer(events=shown, next=shown[-1].id if shown else after), headers=headers)

    def health(self, call: Call) -> Reply:
        return Reply(HealthAnswer(status="ok", reason=None))

    def readiness(self, call: Call) -> Reply:
        node = self._agent.node()
        if not node.ready:
            raise Unhealthy(node.reason or "the agent is not ready yet")
        bypassed = None if node.bypass is None else f"bypassed: {node.bypass.bypass.reason}"
        return Reply(HealthAnswer(status="ready", reason=bypassed))

    def metrics(self, call: Call) -> Reply:
        return Reply(self._metrics())

    def openapi(self, call: Call) -> Reply:
        return Reply(json.dumps(self._openapi()))

    def routes(self) -> tuple[Route, ...]:
        return (
            Route(
                "GET",
                "/v1/node",
                "showNode",
                "The node, and what it can enforce.",
                self.node,
                {200: Promise("The node.", NodeAnswer)},
                problems=(403, 503),
                web=True,
            ),
            Route(
                "GET",
                "/v1/caller",
                "showCaller",
                "Who the agent takes the caller for.",
                self.caller,
                {200: Promise("The caller.", CallerAnswer)},
                web=True,
            ),
            self._act("drain", self.drain, "Grant nothing more on any device.", DrainBody),
            self._act("undrain", self.undrain, "End every drain, the devices' too."),
            Route(
                "GET",
                "/v1/events",
                "listEvents",
                "What happened; ?wait holds the answer until something does.",
                self.events,
                {200: Promise("Events by ascending id; next is the cursor.", EventsAnswer, ("Retry-After",))},
                problems=(403, 503),
                query=(AFTER, WAIT, LIMIT, _NEWEST, _LEASE),
                web=True,
            ),
            Route(
                "GET",
                "/healthz",
                "health",
                "Whether the agent answers at all.",
                self.health,
                {200: Promise("It does.", HealthAnswer)},
                problems=(403,),
                web=True,
            ),
            Route(
                "GET",
                "/readyz",
                "readiness",
                "Whether the agent grants.",
                self.readiness,
                {200: Promise("It does.", HealthAnswer)},
                problems=(403, 503),
                web=True,
            ),
            self._document("/metrics", "metrics", "Metrics for Prometheus.", self.metrics, METRICS),
            self._document("/openapi.json", "openapi", "This document.", self.openapi, JSON),
        )

    @staticmethod
    def _act(verb: str, handle: Callable[[Call], Reply], summary: str, body: type[Body] = EmptyBody) -> Route:
        return Route(
            "POST",
            f"/v1/node/{verb}",
            f"{verb}Node",
            summary,
            handle,
            {200: Promise("The node.", NodeAnswer)},
            problems=(503,),
            body=body,
            administrators=True,
        )

    @staticmethod
    def _document(path: str, name: str, summary: str, handle: Callable[[Call], Reply], media: str) -> Route:
        return Route(
            "GET",
            path,
            name,
            summary,
            handle,
            {200: Promise(summary)},
            problems=(403, 503),
            web=True,
            media=(media,),
        )
