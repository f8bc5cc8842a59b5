"""The Flask application: one dispatcher that checks a call against its route before any handler sees it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flask import Flask, Response, g, request

from nodeagent.api import problems
from nodeagent.api.answers import Answer, ProblemAnswer
from nodeagent.api.body import read_json, read_octets
from nodeagent.api.browsers import BrowserCheck
from nodeagent.api.dashboard import PAGE, dashboard_routes
from nodeagent.api.devices import DeviceRoutes
from nodeagent.api.facade import Agent
from nodeagent.api.fields import Body
from nodeagent.api.guests import GuestRoutes
from nodeagent.api.incoming import LARGEST_BODY
from nodeagent.api.leases import LeaseRoutes
from nodeagent.api.metrics import AgentCollector, RefusalCounter, exposition
from nodeagent.api.node import NodeRoutes
from nodeagent.api.openapi import document
from nodeagent.api.partitions import PartitionRoutes
from nodeagent.api.policy import PolicyRoutes
from nodeagent.api.present import Presenter, Viewer
from nodeagent.api.query import read_path, read_query
from nodeagent.api.routes import JSON, NEGOTIATED, TEXT, Call, Reply, Route
from nodeagent.api.slurm import SlurmRoutes
from nodeagent.api.text import as_lines
from nodeagent.api.waits import WaitingRoom
from nodeagent.api.web import WebGuard, WebSettings
from nodeagent.domain.clock import Clock
from nodeagent.domain.errors import NotAllowed
from nodeagent.service.orders import Caller

Identify = Callable[[Mapping[str, Any]], Caller]
_TEXT_MEDIA = "text/plain; charset=utf-8"
_SECURITY = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """What the interface needs beside the agent."""

    clock: Clock
    version: str
    leases_open: bool = False  # [privacy] leases = "open"
    waiting: WaitingRoom = field(default_factory=WaitingRoom)
    browsers: BrowserCheck = field(default_factory=BrowserCheck)
    web: WebSettings | None = None
    lease_metrics: bool = False  # [metrics] leases


def create_app(agent: Agent, identify: Identify, settings: ApiSettings) -> Flask:
    """The WSGI application. *identify* says who a request's peer is; its pidfd is closed with the request."""
    app = Flask("nodeagent", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = LARGEST_BODY
    app.url_map.merge_slashes = False  # a redirect is an answer that no client here follows
    problems.register(app)
    dispatcher = _Dispatcher(identify, settings)
    routes = api_routes(agent, settings)
    for route in routes:
        app.add_url_rule(
            route.path.replace("{", "<").replace("}", ">"),
            endpoint=route.name,
            view_func=partial(dispatcher.answer, route),
            methods=[route.method],
            provide_automatic_options=False,
        )
    app.before_request(WebGuard(routes, settings.web).check)
    app.after_request(_secure)
    app.teardown_request(_close_caller)
    return app


def api_routes(agent: Agent, settings: ApiSettings) -> tuple[Route, ...]:
    """Every route there is."""
    presenter = Presenter(settings.clock)
    refusals = RefusalCounter()
    collector = AgentCollector(agent, refusals, leases=settings.lease_metrics)
    found: list[Route] = []
    found += NodeRoutes(
        agent,
        presenter,
        settings.waiting,
        metrics=lambda: exposition(collector),
        openapi=lambda: document(found, settings.version),
    ).routes()
    found += DeviceRoutes(agent, presenter).routes()
    found += LeaseRoutes(agent, presenter, settings.waiting, refusals).routes()
    found += GuestRoutes(agent, presenter, refusals).routes()
    found += PartitionRoutes(agent, presenter, refusals).routes()
    found += PolicyRoutes(agent).routes()
    found += SlurmRoutes(agent, settings.waiting).routes()
    found += dashboard_routes()
    return tuple(found)


class _Dispatcher:
    def __init__(self, identify: Identify, settings: ApiSettings) -> None:
        self._identify = identify
        self._open = settings.leases_open
        self._browsers = settings.browsers

    def answer(self, route: Route, **path: str) -> Response:
        # In this order: what cannot be answered acceptably, or is wrong, has no effect.
        self._browsers.check(request, page=route.name == PAGE)
        media = _acceptable(route)
        values = read_path(path, route.path_parameters)
        query = read_query(request, route.query)
        caller = self._caller()
        if route.administrators and not caller.administrator:
            raise NotAllowed("only an administrator may do this")
        viewer = Viewer(caller, open=self._open and not caller.anonymous, plain=media == TEXT)
        octets = read_octets(request) if route.octets else b""
        return _response(route.handle(Call(viewer, values, query, _body(route), octets)), media)

    def _caller(self) -> Caller:
        g.caller = self._identify(request.environ)
        found: Caller = g.caller
        return found


def _acceptable(route: Route) -> str:
    if route.media != NEGOTIATED:
        return route.media[0]
    if not request.headers.get("Accept", "").strip():
        return JSON
    best = request.accept_mimetypes.best_match(NEGOTIATED)
    if best is None:
        raise problems.NotAcceptable(f"this route answers in {' or '.join(NEGOTIATED)}")
    return best


def _body(route: Route) -> Body | None:
    if route.body is None:
        return None
    return route.body.model_validate(read_json(request, required=route.body_required))


def _response(reply: Reply, media: str) -> Response:
    response = _content(reply.answer, reply.status, media)
    response.headers.update(reply.headers)
    return response


def _content(answer: Answer | str | None, status: int, media: str) -> Response:
    if answer is None:
        empty = Response(status=status)
        del empty.headers["Content-Type"]
        return empty
    if isinstance(answer, ProblemAnswer):
        return problems.respond(answer)
    if isinstance(answer, str):
        return Response(answer, status, content_type=media)
    if media == TEXT:
        return Response(as_lines(answer), status, content_type=_TEXT_MEDIA)
    return Response(answer.model_dump_json(), status, content_type=JSON)


def _secure(response: Response) -> Response:
    given = {name for name, _ in response.headers}
    for name, value in _SECURITY.items():
        if name not in given:  # the dashboard may load its own two files
            response.headers.add(name, value)
    return response


def _close_caller(_error: BaseException | None) -> None:
    caller: Caller | None = g.pop("caller", None)
    if caller is not None and caller.pidfd is not None:
        os.close(caller.pidfd)
