"""Requests as they trickle in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.api.incoming import LARGEST_BODY, LARGEST_HEAD, Arrival, Incoming

HEAD = b"POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


@given(body=st.binary(max_size=300), cuts=st.lists(st.integers(0, 400), max_size=12))
def test_a_request_is_whole_with_its_last_byte_and_not_before(body, cuts):
    """However it is cut, only the last byte makes a request whole, and nothing of it is lost."""
    request = HEAD % len(body) + body
    ends = [*sorted({min(cut, len(request) - 1) for cut in cuts} - {0}), len(request)]
    incoming, start = Incoming(), 0
    for end in ends:
        arrival = incoming.add(request[start:end])
        assert arrival is (Arrival.WHOLE if end == len(request) else Arrival.PARTIAL)
        start = end
    assert bytes(incoming.data) == request


@pytest.mark.parametrize(
    ("received", "arrival"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", Arrival.WHOLE),
        (b"\x00\x01\r\n\r\n", Arrival.WHOLE),
        (b"GET / HTTP/1.1\r\n", Arrival.PARTIAL),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * LARGEST_HEAD, Arrival.HEAD_TOO_LARGE),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", Arrival.LENGTH_REQUIRED),
        (b"POST / HTTP/1.1\r\ntransfer-encoding : chunked\r\n\r\n", Arrival.LENGTH_REQUIRED),
        (HEAD % (LARGEST_BODY + 1), Arrival.WHOLE),
        (HEAD % 10, Arrival.PARTIAL),
        (b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", Arrival.BAD_LENGTH),
        (HEAD.replace(b"%d", b"%016d") % 5, Arrival.BAD_LENGTH),
        (HEAD.replace(b"%d", b"0\r\nContent-Length: 5"), Arrival.BAD_LENGTH),
    ],
)
def test_what_is_wrong_is_known_without_reading_on(received, arrival):
    """A request too large, chunked or without sense costs no thread and no wait."""
    assert Incoming().add(received) is arrival


def test_expect_is_answered_once():
    """The expectation is met here, and the HTTP parser does not see it."""
    incoming = Incoming()
    head = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    assert incoming.add(head) is Arrival.EXPECTS
    assert incoming.add(b"{}") is Arrival.WHOLE
    assert bytes(incoming.data) == b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
    assert Incoming().add(head + b"{}") is Arrival.WHOLE
