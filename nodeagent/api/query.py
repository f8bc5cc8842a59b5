"""Query and path parameters: a wrong, repeated or unknown one is a 422 that names it, as in bodies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from flask import Request

from nodeagent.api.fields import LARGEST_INTEGER
from nodeagent.api.problems import printable
from nodeagent.domain.errors import InvalidField

LONGEST_WAIT = 5  # seconds
LARGEST_PAGE = 500
_DIGITS = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(\.\d{1,18})?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: how it is read, and what OpenAPI says of it."""

    name: str
    schema: Mapping[str, Any]
    read: Callable[[str], Any]
    about: str
    default: Any = None


def whole(name: str, low: int, high: int, about: str, default: int | None = None) -> Parameter:
    def read(text: str) -> int:
        if not _DIGITS.fullmatch(text) or not low <= int(text) <= high:
            raise ValueError(f"must be an integer from {low} to {high}")
        return int(text)

    schema: dict[str, Any] = {"type": "integer", "minimum": low, "maximum": high}
    if default is not None:
        schema["default"] = default
    return Parameter(name, schema, read, about, default)


def choices(name: str, values: tuple[str, ...], about: str) -> Parameter:
    """One or several of *values*, with commas."""

    def read(text: str) -> frozenset[str]:
        chosen = text.split(",")
        if not set(chosen) <= set(values) or len(chosen) > len(values):
            raise ValueError(f"must be of {', '.join(values)}, with commas between")
        return frozenset(chosen)

    one = "|".join(values)
    pattern = f"^({one})(,({one})){{0,{len(values) - 1}}}$"
    return Parameter(name, {"type": "string", "pattern": pattern}, read, about)


def pattern(name: str, expression: str, about: str) -> Parameter:
    compiled = re.compile(expression.removeprefix("^").removesuffix("$"), re.ASCII)

    def read(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"must match {expression}")
        return text

    return Parameter(name, {"type": "string", "pattern": expression}, read, about)


def moment(name: str, about: str) -> Parameter:
    """An RFC 3339 time; read as wall-clock seconds."""

    def read(text: str) -> float:
        try:
            if not _TIME.fullmatch(text):
                raise ValueError
            return datetime.fromisoformat(text.upper().replace("Z", "+00:00")).astimezone(UTC).timestamp()
        except (ValueError, OverflowError):
            raise ValueError("must be an RFC 3339 time, such as 2026-01-31T12:00:00Z") from None

    return Parameter(name, {"type": "string", "format": "date-time"}, read, about)


WAIT = whole("wait", 0, LONGEST_WAIT, "Seconds to wait for a change before the answer.", 0)
AFTER = whole("after", 0, LARGEST_INTEGER, "The cursor: only what has a larger id.", 0)
LIMIT = whole("limit", 1, LARGEST_PAGE, "The most entries of one answer.", 100)
LEASE_ID = whole("id", 1, LARGEST_INTEGER, "The lease.")
GUEST_ID = whole("guest", 1, LARGEST_INTEGER, "The container, by the id that the lease has for it.")


def read_query(request: Request, parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    """Every parameter's value, defaults filled in."""
    known = {parameter.name for parameter in parameters}
    for name, values in request.args.lists():
        if name not in known:
            raise InvalidField(printable(name), "there is no such query parameter")
        if len(values) > 1:
            raise InvalidField(name, "stands more than once")
    return {p.name: _value(p, request.args.get(p.name)) for p in parameters}


def read_path(values: Mapping[str, str], parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    return {p.name: _value(p, values[p.name]) for p in parameters}


def _value(parameter: Parameter, text: str | None) -> Any:
    if text is None:
        return parameter.default
    try:
        return parameter.read(text)
    except ValueError as error:
        raise InvalidField(parameter.name, str(error)) from None
