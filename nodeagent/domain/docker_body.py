"""A request as dockerd hands it on, and its body read so that Go's reader cannot have read another one.

Go takes the last of repeated keys, matches keys in any case (also ``ſ`` for s and the Kelvin sign for k),
merges objects that come twice, ignores what follows the document and replaces what is no UTF-8. So only a
document is read in which none of these occurs; keys must then be spelled exactly (`known`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nodeagent.domain.errors import InvalidField

_JSON = re.compile(r'application/json(?: *; *charset="?utf-8"?)?', re.IGNORECASE)
_STRANGE = re.compile("[\0\ud800-\udfff]")
_DEEPEST = 32
_BODY = "the request's body"

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """What dockerd's AuthZReq says of one request. Header names are lower case."""

    method: str
    uri: str
    headers: Mapping[str, str]
    body: bytes

    def form(self) -> bool:
        """Whether dockerd would take options from the body, which is not handed on then."""
        return (
            self.headers.get("content-type", "").lower().lstrip().startswith(("application/x-www", "multip"))
        )

    def empty(self) -> bool:
        """Whether it says of itself that it has no body.

        Of several Content-Types dockerd obeys the first and hands on the last: a form's may not be seen.
        """
        return not self.body and self.headers.get("content-length", "").strip() == "0"

    def bare(self) -> bool:
        """Whether there is no body, or one in chunks that was not handed on: dockerd starts nothing then."""
        return not self.body and self.headers.get("content-length", "0").strip() == "0"


def read_object(request: Request) -> Object:
    """The JSON object that *request* carries.

    Raises:
        InvalidField: dockerd might read another one, or did not hand it on whole. dockerd leaves out bodies
            of another type and those above 1 MiB (4 MiB in Debian's), and does not tell chunked ones.
    """
    if not _JSON.fullmatch(request.headers.get("content-type", "").strip()):
        raise InvalidField(_BODY, "its Content-Type must be application/json")
    if not request.body:
        raise InvalidField(_BODY, "it is empty, or too large to be judged")
    if request.headers.get("content-length", "").strip() != str(len(request.body)):
        raise InvalidField(_BODY, "it must come whole, with its Content-Length")
    document = read_json(request.body)
    if not isinstance(document, dict):
        raise InvalidField(_BODY, "it must be a JSON object")
    return document


def read_json(body: bytes) -> object:
    """The one JSON document that *body* is.

    Raises:
        InvalidField: Go's reader might read another one.
    """
    try:
        text = body.decode("utf-8")
        document = json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant)
    except UnicodeDecodeError:
        raise InvalidField(_BODY, "it is not UTF-8") from None
    except RecursionError:
        raise InvalidField(_BODY, "it is nested too deep") from None
    except ValueError as wrong:
        raise InvalidField(_BODY, f"it is not one JSON document: {wrong}") from None
    for word in _texts(document):
        if _STRANGE.search(word):
            raise InvalidField(_BODY, "a text in it holds what docker reads in another way")
    return document


def _pairs(pairs: list[tuple[str, Any]]) -> Object:
    read = dict(pairs)
    if len(read) != len(pairs):
        raise InvalidField(_BODY, "a key comes twice in one object")
    return read


def _constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _texts(document: object) -> Iterator[str]:
    """Every key and text. Without recursion: the document is the caller's.

    Raises:
        InvalidField: it is nested deeper than any body of docker's.
    """
    level: list[object] = [document]
    for _ in range(_DEEPEST):
        inner: list[object] = []
        for value in level:
            if isinstance(value, str):
                yield value
            elif isinstance(value, dict):
                yield from value
                inner.extend(value.values())
            elif isinstance(value, list):
                inner.extend(value)
        if not inner:
            return
        level = inner
    raise InvalidField(_BODY, "it is nested too deep")


def known(where: str, given: Object, keys: Collection[str]) -> Iterator[str]:
    """Say of each key of *given* that is not among *keys*, letter by letter, that it is unknown."""
    return (f"{where} has a key {key[:40]!r} that is not known here" for key in given if key not in keys)


def text(where: str, value: object) -> str:
    """*value* where it is a text, "" for null.

    Raises:
        InvalidField: it is something else.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidField(where, "it must be a text")
    return value


def items(where: str, value: object) -> list[Any]:
    """*value* where it is a list, nothing for null.

    Raises:
        InvalidField: it is something else.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidField(where, "it must be a list")
    return value


def texts(where: str, value: object) -> list[str]:
    """*value* where it is a list of texts, nothing for null.

    Raises:
        InvalidField: it is something else.
    """
    return [text(where, item) for item in items(where, value)]


def mapping(where: str, value: object) -> Object:
    """*value* where it is an object, an empty one for null.

    Raises:
        InvalidField: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidField(where, "it must be an object")
    return value


def objects(where: str, value: object) -> list[Object]:
    """*value* where it is a list of objects, nothing for null.

    Raises:
        InvalidField: it is something else.
    """
    return [mapping(where, item) for item in items(where, value)]
