"""What is remembered of rows that were read."""

from __future__ import annotations

from nodeagent.domain.request import Request, SliceRequest
from nodeagent.ledger import rows


def test_a_long_request_is_not_kept_in_memory() -> None:
    """Requests are read at every look, so their values are kept; but no user fills memory with long ones."""
    short = Request(slices=(SliceRequest(device=("x",)),))
    long = Request(slices=(SliceRequest(device=("x" * 2000,)),))
    kept = rows.request_of(rows.request_text(short))
    assert rows.request_of(rows.request_text(short)) is kept
    read = rows.request_of(rows.request_text(long))
    assert read == long
    assert rows.request_of(rows.request_text(long)) is not read
