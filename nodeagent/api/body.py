"""Request bodies: bounded, and read by one JSON parser, so that nothing reads them differently."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from flask import Request
from pydantic_core import from_json
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge

from nodeagent.api.incoming import LARGEST_BODY
from nodeagent.api.problems import BodyTooLarge, MalformedBody, UnsupportedMedia, printable
from nodeagent.api.routes import OCTETS

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]')
_POSITION = re.compile(r"line (\d+) column (\d+)$")
_FORMS = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})
_KEY = re.compile(r'"([A-Za-z0-9_]{1,64})"\s*:')


def read_json(request: Request, *, required: bool) -> Any:
    """The body's value; ``{}`` for an empty one unless *required*.

    Raises:
        MalformedBody, BodyTooLarge, UnsupportedMedia: 400, 413, 415.
    """
    raw = _raw(request)
    if not raw and not required and request.mimetype not in _FORMS:
        return {}  # what a page anywhere may send without being asked has to be JSON, and so cannot be
    _check_media(request)
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise MalformedBody(f"not JSON: {error}", _near(raw, str(error))) from None
    # The parser above lets the last of two equal keys win, as others let the first: nobody may depend on it.
    for key in _repeated_keys(raw.decode("utf-8")):
        raise MalformedBody("the same key stands twice in one object", printable(key))
    return value


def read_octets(request: Request) -> bytes:
    """The body as it came. Raises what `read_json` does."""
    raw = _raw(request)
    if request.mimetype != OCTETS:
        raise UnsupportedMedia(f"send the body as Content-Type: {OCTETS}")
    _check_encoding(request)
    return raw


def _raw(request: Request) -> bytes:
    request.max_content_length = LARGEST_BODY
    try:
        return request.get_data(cache=False)
    except RequestEntityTooLarge:
        raise BodyTooLarge(f"the body is larger than {LARGEST_BODY} bytes") from None
    except ClientDisconnected:
        raise MalformedBody("the body ended before its Content-Length", None) from None


def _check_media(request: Request) -> None:
    charset = request.mimetype_params.get("charset", "utf-8").lower()
    if request.mimetype != "application/json" or charset not in {"utf-8", "utf8"}:
        raise UnsupportedMedia("send the body as Content-Type: application/json, in UTF-8")
    _check_encoding(request)


def _check_encoding(request: Request) -> None:
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnsupportedMedia("send the body without a Content-Encoding")


def _near(raw: bytes, message: str) -> str | None:
    """The last key before the place that the parser's *message* names."""
    found = _POSITION.search(message)
    if found is None:
        return None
    line, column = int(found[1]), int(found[2])
    lines = raw.split(b"\n")
    before = b"\n".join([*lines[: line - 1], lines[line - 1][:column]])
    keys = _KEY.findall(before.decode("utf-8", "replace"))
    return keys[-1] if keys else None


@dataclass(slots=True)
class _Level:
    """One open object or array of a text that is known to be JSON."""

    is_object: bool
    expects_key: bool = True
    keys: set[str] = field(default_factory=set)


def _repeated_keys(text: str) -> Iterator[str]:
    """Keys that an object of *text* has already had. *text* must be valid JSON."""
    levels: list[_Level] = []
    for piece in _TOKEN.findall(text):
        if piece in "{[":
            levels.append(_Level(piece == "{"))
        elif piece in "}]":
            levels.pop()
        elif not levels or not levels[-1].is_object:
            continue
        elif piece in ":,":
            levels[-1].expects_key = piece == ","
        elif levels[-1].expects_key:
            key = from_json(piece)
            if key in levels[-1].keys:
                yield key
            levels[-1].keys.add(key)
