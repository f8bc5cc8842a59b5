"""What is remembered of rows that were read."""

from __future__ import annotations

import json

from nodeagent.domain.request import Priority, Request, SliceRequest
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


def test_a_request_from_before_there_were_queue_priorities_is_read() -> None:
    """Its hardware queues are at the normal one, and so it is the same request when it is repeated."""
    stored = json.loads(rows.request_text(Request(queue_priority=Priority.LOW)))
    assert rows.request_of(json.dumps(stored)).queue_priority is Priority.LOW
    del stored["queue_priority"]
    assert rows.request_of(json.dumps(stored)) == Request()
