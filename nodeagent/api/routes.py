"""What a route is: one description that Flask, the checks and the OpenAPI document are all made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nodeagent.api.answers import Answer
from nodeagent.api.fields import Body
from nodeagent.api.present import Viewer
from nodeagent.api.query import Parameter
from nodeagent.service.orders import Caller

JSON = "application/json"
OCTETS = "application/octet-stream"
TEXT = "text/plain"
NEGOTIATED = (JSON, TEXT)


@dataclass(frozen=True, slots=True)
class Call:
    """One checked request. *body* is of the route's body model, None where it has none.

    *octets* is the body as it came, of a route that takes it so.
    """

    viewer: Viewer
    path: Mapping[str, Any]
    query: Mapping[str, Any]
    body: Body | None
    octets: bytes = b""

    @property
    def caller(self) -> Caller:
        return self.viewer.caller


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer: a model, or ready text for a route of one media type, or nothing."""

    answer: Answer | str | None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Promise:
    """What one status of a route carries, for OpenAPI."""

    about: str
    answer: type[Answer] | None = None
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one path, in OpenAPI's spelling."""

    method: str
    path: str
    name: str
    summary: str
    handle: Callable[[Call], Reply]
    promises: Mapping[int, Promise]
    problems: tuple[int, ...] = ()  # further statuses, each a problem document
    path_parameters: tuple[Parameter, ...] = ()
    query: tuple[Parameter, ...] = ()
    body: type[Body] | None = None
    body_required: bool = False
    octets: bool = False  # the body is no JSON: the use case reads it
    administrators: bool = False
    web: bool = False  # may be read by TCP too, with the token where there is one
    public: bool = False  # tells nothing of the node: a listener that wants a token serves it without
    media: tuple[str, ...] = NEGOTIATED

    @property
    def all_problems(self) -> tuple[int, ...]:
        """Every problem status, also those that follow from what the route takes."""
        found = {*self.problems, 403, 500}  # 403: what a foreign page sends, too
        takes_body = self.body is not None or self.octets
        if self.path_parameters or self.query or takes_body:
            found.add(422)
        if takes_body:
            found |= {400, 413, 415}
        if self.web or self.public:
            found |= {401, 421}
        if self.media == NEGOTIATED:
            found.add(406)
        return tuple(sorted(found))


RETRY_AFTER = {"Retry-After": "1"}  # who asked to wait and got no seat comes back then
