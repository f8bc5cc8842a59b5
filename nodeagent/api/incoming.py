"""The bytes of one request as they trickle in, read without a thread: a slow sender then holds nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum, auto

LARGEST_HEAD = 16 * 1024  # bytes
LARGEST_BODY = 64 * 1024

_LENGTH = re.compile(rb"\r\ncontent-length[ \t]*:[ \t]*([^\r\n]*)", re.IGNORECASE)
_DIGITS = re.compile(rb"[0-9]{1,12}[ \t]*")
_CHUNKED = re.compile(rb"\r\ntransfer-encoding[ \t]*:", re.IGNORECASE)
_EXPECT = re.compile(rb"\r\nexpect:[ \t]*100-continue[ \t]*(?=\r\n)", re.IGNORECASE)


class Arrival(Enum):
    """How far a request has come."""

    PARTIAL = auto()
    EXPECTS = auto()  # the client waits for "100 Continue" before it sends the body
    WHOLE = auto()  # or so far wrong that its handler will say so without reading on
    HEAD_TOO_LARGE = auto()
    BAD_LENGTH = auto()  # another reader might find another length in it, and wait for the rest
    LENGTH_REQUIRED = auto()  # chunked: its end cannot be told without a parser


@dataclass(slots=True)
class Incoming:
    """What has arrived of one request."""

    data: bytearray = field(default_factory=bytearray)
    _body_at: int | None = None
    _body_length: int = 0

    def add(self, received: bytes) -> Arrival:
        self.data += received
        if self._body_at is None:
            found = self._find_body()
            if found is not None:
                return found
        return self._progress()

    def _find_body(self) -> Arrival | None:
        """Note where the body begins and how long it will be; an Arrival where that ends the matter."""
        end = self.data.find(b"\r\n\r\n", 0, LARGEST_HEAD)
        if end < 0:
            return Arrival.HEAD_TOO_LARGE if len(self.data) >= LARGEST_HEAD else Arrival.PARTIAL
        head = bytes(self.data[: end + 2])
        if _CHUNKED.search(head):
            return Arrival.LENGTH_REQUIRED
        lengths = _LENGTH.findall(head)
        if len(lengths) > 1 or (lengths and not _DIGITS.fullmatch(lengths[0])):
            return Arrival.BAD_LENGTH
        expected = _EXPECT.search(head)
        if expected is not None:
            # It is answered here; left in, the HTTP parser would answer it once more.
            del self.data[expected.start() : expected.end()]
            end -= expected.end() - expected.start()
        self._body_at = end + 4
        self._body_length = int(lengths[0]) if lengths else 0
        if expected is not None and self._progress() is Arrival.PARTIAL:
            return Arrival.EXPECTS
        return None

    def _progress(self) -> Arrival:
        if self._body_length > LARGEST_BODY:
            return Arrival.WHOLE  # refused by its length, unread
        here = len(self.data) - (self._body_at or 0)
        return Arrival.WHOLE if here >= self._body_length else Arrival.PARTIAL
