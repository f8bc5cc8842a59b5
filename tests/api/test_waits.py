"""Seats for requests that wait."""

from __future__ import annotations

from contextlib import ExitStack

from nodeagent.api.waits import WaitingRoom


def test_subordinate_uids_share_their_owners_seats(caller_of):
    """Two seats a user, whichever of its uids asks; another user finds one."""
    room = WaitingRoom(owner_of=lambda uid: 1000 if uid > 100_000 else uid)
    with ExitStack() as seats:
        uids = (100_001, 100_002, 1000, 1001)
        assert [seats.enter_context(room.seat(caller_of(uid))) for uid in uids] == [True, True, False, True]
    with room.seat(caller_of(1000)) as again:
        assert again
