"""Every error is an RFC 9457 problem document with a ``code`` to act on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import structlog
from flask import Flask, Response
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from werkzeug.exceptions import HTTPException

from nodeagent.api.answers import ProblemAnswer
from nodeagent.domain import errors

MEDIA_TYPE = "application/problem+json"
log = structlog.get_logger()


class MalformedBody(Exception):
    """The body is no JSON that everybody reads alike. *field* is the key nearest to the trouble."""

    def __init__(self, why: str, field: str | None) -> None:
        super().__init__(why)
        self.field = field


class BodyTooLarge(Exception):
    """The body is over the limit."""


class UnsupportedMedia(Exception):
    """The body is not UTF-8 JSON."""


class NotAcceptable(Exception):
    """The caller accepts no media type that the route speaks."""


class Unauthenticated(Exception):
    """The caller showed no token, or a wrong one."""


class WrongHost(Exception):
    """The request is for a host of another name."""


class WrongMethod(Exception):
    """What is asked for can only be read here."""


class Unhealthy(Exception):
    """The node grants nothing now; the message says why."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What every problem of one code shares."""

    code: str
    status: int
    title: str
    retry_after: int | None = None  # seconds


METHOD_NOT_ALLOWED = Kind("MethodNotAllowed", 405, "The route does not know this method")
KINDS: dict[type[Exception], Kind] = {
    errors.InvalidField: Kind("InvalidField", 422, "A field of the request can never be right"),
    MalformedBody: Kind("MalformedBody", 400, "The body is not acceptable JSON"),
    BodyTooLarge: Kind("TooLarge", 413, "The body is too large"),
    UnsupportedMedia: Kind("UnsupportedMedia", 415, "The body is not of a media type that is read here"),
    NotAcceptable: Kind("NotAcceptable", 406, "The answer has no media type that the caller accepts"),
    Unauthenticated: Kind("Unauthenticated", 401, "The caller did not show the token"),
    WrongHost: Kind("WrongHost", 421, "This is not the host that the request names"),
    WrongMethod: METHOD_NOT_ALLOWED,
    errors.InLease: Kind("InLease", 403, "The caller is in a lease, where it may have what it asks for"),
    errors.NotAllowed: Kind("NotAllowed", 403, "The caller may not do this"),
    errors.UnknownThing: Kind("UnknownThing", 404, "There is no such thing"),
    errors.StaleLease: Kind("StaleLease", 410, "The lease has ended"),
    errors.KeyReused: Kind("KeyReused", 422, "The request id was used with another body"),
    errors.TooMany: Kind("TooMany", 429, "The caller is over one of its limits", 1),
    errors.LedgerUnavailable: Kind("LedgerUnavailable", 503, "The ledger takes no changes now", 5),
    errors.OutsideFault: Kind("OutsideFault", 503, "Something outside the agent failed", 5),
    Unhealthy: Kind("NodeUnhealthy", 503, "The node grants nothing now", 5),
}
INTERNAL = Kind("InternalError", 500, "The agent failed; its log says why")
_SPECIAL = ("KeyReused", "InLease")
_BY_STATUS = {kind.status: kind for kind in KINDS.values() if kind.code not in _SPECIAL}


def printable(text: str) -> str:
    """*text* as short printable ASCII: safe on a terminal, in a log and in HTML-free JSON."""
    return text.encode("ascii", "backslashreplace").decode().encode("unicode_escape").decode()[:64]


def problem(kind: Kind, detail: str, **more: Any) -> Response:
    """*more*: further members, left out where they are None."""
    body = ProblemAnswer(
        type=f"urn:nodeagent:problem:{kind.code}",
        title=kind.title,
        status=kind.status,
        code=kind.code,
        detail=detail,
    )
    said = {name: value for name, value in more.items() if value is not None}
    return respond(body.model_copy(update=said), kind.retry_after)


def respond(body: ProblemAnswer, retry_after: int | None = None) -> Response:
    response = Response(body.model_dump_json(exclude_unset=True), body.status, content_type=MEDIA_TYPE)
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    return response


def register(app: Flask) -> None:
    """Make *app* answer every exception as a problem document."""
    for fault in KINDS:
        app.register_error_handler(fault, _fault)
    app.register_error_handler(ValidationError, _invalid)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(Exception, _internal)


def _fault(error: Exception) -> Response:
    kind = next(kind for fault, kind in KINDS.items() if isinstance(error, fault))
    if isinstance(error, errors.InvalidField):
        return problem(kind, error.why, field=error.field)
    response = problem(
        kind, str(error), field=getattr(error, "field", None), lease=getattr(error, "lease", None)
    )
    if isinstance(error, Unauthenticated):
        response.headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, WrongMethod):
        response.headers["Allow"] = "GET, HEAD"
    if isinstance(error, errors.TooMany):
        response.headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    return response


def _invalid(error: ValidationError) -> Response:
    # Neither the input nor the parser's own text of it is repeated: both are the caller's.
    first = error.errors(include_url=False, include_input=False)[0]
    return problem(KINDS[errors.InvalidField], _why(first), field=_field(first))


# The parser's own words for these name Python's types, or repeat what the caller sent.
_WHY = {
    "extra_forbidden": "there is no such field",
    "missing": "has to be there",
    "tuple_type": "must be a list",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "union_tag_not_found": "kind has to be there",
    "union_tag_invalid": "kind must be one of {expected_tags}",
    "too_short": "must have at least {min_length} item(s)",
    "too_long": "must have at most {max_length} item(s)",
}


def _why(error: ErrorDetails) -> str:
    plain = _WHY.get(error["type"])
    return error["msg"] if plain is None else plain.format(**error.get("ctx", {}))


def _field(error: ErrorDetails) -> str:
    """``slices[0].cus`` from pydantic's location; the tag of a union member is not part of the body."""
    name = ""
    path = error["loc"]
    for at, part in enumerate(path):
        if isinstance(part, int):
            name += f"[{part}]"
        elif at == 1 and path[0] in {"holder", "anchor"} and len(path) > 2:
            continue
        else:
            name += f".{printable(part)}" if name else printable(part)
    inner = error.get("ctx", {}).get("field")
    if inner:
        name = f"{name}.{inner}" if name else str(inner)
    return name or "body"


def _http(error: HTTPException) -> Response:
    kind = _BY_STATUS.get(error.code or 500)
    if kind is None:
        kind = Kind("MalformedBody", error.code or 400, error.name) if (error.code or 500) < 500 else INTERNAL
    allowed = error.get_response().headers.get("Allow")
    details: dict[int, str] = {404: "there is no such route", 405: f"this route takes {allowed}"}
    response = problem(kind, details.get(kind.status, kind.title))
    if allowed:
        response.headers["Allow"] = allowed
    return response


def _internal(error: Exception) -> Response:
    log.error("a request failed by a fault of the agent", exc_info=error)
    return problem(INTERNAL, "this is a fault of the agent, not of the request")
