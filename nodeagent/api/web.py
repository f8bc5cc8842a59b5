"""The read-only TCP listener: what is served there, and to whom.

Whoever connects is nobody in particular: an anonymous caller, who sees others' leases masked and acts on
nothing. Its connections have threads of their own, so that they never take those of the socket's callers.
"""

from __future__ import annotations

import hmac
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from flask import request

from nodeagent.api.browsers import name_of
from nodeagent.api.problems import Unauthenticated, Unhealthy, WrongHost, WrongMethod
from nodeagent.api.routes import Route
from nodeagent.domain.endpoint import Endpoint
from nodeagent.domain.errors import OutsideFault, UnknownThing

log = structlog.get_logger()

BACKLOG = 64
_METHODS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class WebSettings:
    """*hosts*: every Host header that is served. *token* reads the token of now; None: none is asked for."""

    endpoint: Endpoint
    hosts: frozenset[str]
    token: Callable[[], bytes] | None = None

    @property
    def names(self) -> frozenset[str]:
        """The hosts without their ports."""
        return frozenset(map(name_of, self.hosts))


def over_tcp(environ: Mapping[str, Any]) -> bool:
    """Whether a request came in by TCP; *environ* is WSGI's, as gunicorn makes it."""
    connection = environ.get("gunicorn.socket")
    return connection is not None and connection.family != socket.AF_UNIX


def open_listener(endpoint: Endpoint) -> socket.socket:
    """A listening socket. Raises OSError: the address is not this node's, or the port is taken."""
    family = socket.AF_INET6 if endpoint.address.version == 6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(endpoint.address), endpoint.port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


class WebGuard:
    """Lets through, of what comes by TCP, reads of the routes that are for it; in front of every handler."""

    def __init__(self, routes: Iterable[Route], settings: WebSettings | None) -> None:
        self._routes = {route.name: route for route in routes if route.web or route.public}
        self._settings = settings
        self._trouble: str | None = None  # with the token, as the log has it

    def check(self) -> None:
        """Raises unless the current request is of the unix socket, or may be answered by TCP.

        The Host comes first: a page of another site, which has had its name point here, learns nothing.
        """
        if not over_tcp(request.environ):
            return
        settings = self._settings
        if settings is None or request.headers.get("Host", "").lower() not in settings.hosts:
            raise WrongHost("this listener is not called that; see [web] hosts")
        rule = request.url_rule
        route = self._routes.get(rule.endpoint) if rule else None
        if settings.token is not None and not (route and route.public):
            self._check_token(settings.token)
        if request.method not in _METHODS:
            raise WrongMethod("this listener is for reading only; acts go through the agent's socket")
        if route is None:
            raise UnknownThing("there is no such route on this listener; the agent's socket has all of them")

    def _check_token(self, token: Callable[[], bytes]) -> None:
        scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
        right = hmac.compare_digest(shown.strip().encode("utf-8", "replace"), self._read(token))
        if scheme.lower() != "bearer" or not right:
            raise Unauthenticated("show the token of [web] token_file as Authorization: Bearer")

    def _read(self, token: Callable[[], bytes]) -> bytes:
        try:
            found = token()
        except OutsideFault as fault:
            if self._trouble != str(fault):  # once: anybody may ask as often as they like
                self._trouble = str(fault)
                log.error("nobody is let in by TCP", why=self._trouble)
            raise Unhealthy("the token of this listener cannot be read; the agent's log says why") from None
        if self._trouble is not None:
            self._trouble = None
            log.info("the token is read again: who shows it is let in by TCP")
        return found
