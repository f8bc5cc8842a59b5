"""Who may connect and who may wait, at one time."""

from __future__ import annotations

from contextlib import ExitStack

from nodeagent.api.admission import Admission, Lane, Limits
from nodeagent.api.waits import WaitingRoom


def test_a_uid_has_few_connections_and_gets_them_back():
    """The fifth connection of a uid is refused until one of the four is closed."""
    admission = Admission(Limits(per_uid=4))
    assert [admission.enter(Lane(7, False)) for _ in range(5)] == [True] * 4 + [False]
    assert admission.enter(Lane(8, False))
    admission.leave(Lane(7, False))
    assert admission.enter(Lane(7, False))


def test_all_users_together_leave_roots_lane_free():
    """Full for users is not full for administrators, and the other way round."""
    admission = Admission(Limits(per_uid=1, users=3, reserved=2))
    assert [admission.enter(Lane(uid, False)) for uid in range(1, 5)] == [True, True, True, False]
    assert [admission.enter(Lane(0, True)) for _ in range(3)] == [True, True, False]


def test_a_containers_root_is_a_user_like_any():
    """uid 0 outside the reserved lane has a user's few connections."""
    admission = Admission(Limits(per_uid=1))
    assert [admission.enter(Lane(0, False)) for _ in range(2)] == [True, False]
    assert admission.enter(Lane(0, True))


def test_two_waits_a_uid_and_half_the_threads_in_all(caller_of):
    """Seats run out per uid and in all; a seat that is left is free again; administrators have their own."""
    room = WaitingRoom(seats=3, per_uid=2, administrators=1)
    with ExitStack() as stack:
        taken = [stack.enter_context(room.seat(caller_of(uid))) for uid in (1, 1, 1, 2, 3, 0, 0)]
        assert taken == [True, True, False, True, False, True, False]
    with room.seat(caller_of(1)) as seated:
        assert seated
