"""Which shared memory goes with a lease: every doubt by itself keeps an object."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.domain.ipc import NOT_THE_LEASES, Found, Kind, Life, Reason, Scene, Users, judge

UID, OTHER = 12_345, 12_346
SINCE, MADE = 1_000.0, 1_010.0
INSIDE, STRANGER = 77, 99

SEGMENT = Found(Kind.SEGMENT, "32768", 7, UID, UID, MADE, creator_pid=INSIDE, last_pids=(INSIDE,))
QUEUE = Found(Kind.QUEUE, "4", 8, UID, UID, MADE, last_pids=(INSIDE, INSIDE))
FILE = Found(Kind.FILE, "nccl-Ab12", 4711, UID, UID, MADE)
SEMAPHORES = Found(Kind.SEMAPHORES, "1", 9, UID, UID, MADE)
ALL = (SEGMENT, QUEUE, FILE)

SCENE = Scene(
    uid=UID,
    since=SINCE,
    before=frozenset(),
    clock_set=False,
    lives=(Life(INSIDE, began=1_005.0, ended=1_020.0),),
    namespaces=frozenset(),
    others=(),
    elsewhere=(),
    users=Users(),
)


@pytest.mark.parametrize("found", ALL, ids=lambda found: found.kind)
def test_what_the_lease_alone_can_have_made_goes(found: Found) -> None:
    """Made within it by its own, and used by nobody: proved."""
    verdict = judge(found, SCENE)
    assert verdict.removes and verdict.reason is Reason.PROVED
    assert not verdict.in_doubt and verdict.detail


KEPT = [
    ("a semaphore", replace(FILE, name="sem.mp-x"), {}, Reason.SEMAPHORE),
    ("semaphores", SEMAPHORES, {}, Reason.SEMAPHORE),
    ("rocm_smi's mutex", replace(FILE, name="rocm_smi_card0"), {}, Reason.NODE_WIDE),
    ("rocm_smi's other mutex", replace(FILE, name="rocm_smi_renderD128"), {}, Reason.NODE_WIDE),
    ("the thunk's old memory", replace(FILE, name="hsakmt_shared_mem"), {}, Reason.NODE_WIDE),
    ("the thunk's old semaphore", replace(FILE, name="sem.hsakmt_semaphore"), {}, Reason.NODE_WIDE),
    ("a link", replace(FILE, plain=False), {}, Reason.ODD_FILE),
    ("another's file", replace(FILE, uid=OTHER, creator_uid=OTHER), {}, Reason.OTHER_OWNER),
    ("given to another", replace(SEGMENT, uid=OTHER), {}, Reason.OTHER_OWNER),
    ("got from another", replace(SEGMENT, creator_uid=OTHER), {}, Reason.OTHER_OWNER),
    ("root's", replace(QUEUE, creator_uid=0), {}, Reason.OTHER_OWNER),
    ("of before", SEGMENT, {"before": {SEGMENT.token}}, Reason.BEFORE),
    ("renamed since", replace(FILE, name="new"), {"before": {FILE.token}}, Reason.BEFORE),
    ("among too many", FILE, {"before": None}, Reason.UNCOUNTED),
    ("under a clock that jumped", SEGMENT, {"clock_set": True}, Reason.CLOCK_SET),
    ("without a birth time", replace(FILE, created=None), {}, Reason.UNDATED),
    ("older than the lease", replace(FILE, created=999.8), {}, Reason.EARLIER),
    ("older by a second", replace(SEGMENT, created=998.0), {}, Reason.EARLIER),
    ("of another IPC namespace", SEGMENT, {"namespaces": {Kind.SEGMENT}}, Reason.NAMESPACE),
    ("of another /dev/shm", FILE, {"namespaces": {Kind.FILE}}, Reason.NAMESPACE),
    ("attached", replace(SEGMENT, attached=1), {}, Reason.ATTACHED),
    ("of a stranger", replace(SEGMENT, creator_pid=STRANGER), {}, Reason.UNKNOWN_CREATOR),
    ("of nobody known", SEGMENT, {"lives": ()}, Reason.UNKNOWN_CREATOR),
    ("from before its creator", replace(SEGMENT, created=1_003.0), {}, Reason.UNKNOWN_CREATOR),
    ("from after its creator", replace(SEGMENT, created=1_021.0), {}, Reason.UNKNOWN_CREATOR),
    ("of one who moved on", SEGMENT, {"elsewhere": (Life(INSIDE, 1_005.0),)}, Reason.OTHER_LEASE),
    ("last used outside", SEGMENT, {"users": Users(alive=frozenset({INSIDE}))}, Reason.UNKNOWN_USER),
    ("sent to by a stranger", replace(QUEUE, last_pids=(STRANGER,)), {}, Reason.UNKNOWN_USER),
    ("a queue of two leases", QUEUE, {"others": (8,)}, Reason.OTHER_LEASE),
    ("a file of two leases", FILE, {"others": (8,)}, Reason.OTHER_LEASE),
    ("a queue of a session", QUEUE, {"users": Users(session=(5,))}, Reason.SESSION),
    ("a file of a session", FILE, {"users": Users(session=(5,))}, Reason.SESSION),
    ("not looked for", FILE, {"users": Users(unseen=frozenset({FILE.token}))}, Reason.UNSEEN),
    ("open", FILE, {"users": Users(open_by={FILE.token: (5,)})}, Reason.OPEN),
    ("open in somebody's hands", FILE, {"users": Users(open_by={FILE.token: ()})}, Reason.OPEN),
]


@pytest.mark.parametrize(("what", "found", "scene", "reason"), KEPT, ids=[row[0] for row in KEPT])
def test_each_doubt_by_itself_keeps_an_object(what: str, found: Found, scene: dict, reason: Reason) -> None:
    """With all else proved, one doubt is enough, and it is told."""
    verdict = judge(found, replace(SCENE, **scene))
    assert (verdict.reason, verdict.removes) == (reason, False)
    assert verdict.in_doubt is (reason not in NOT_THE_LEASES)
    assert verdict.detail


def test_every_reason_is_tried() -> None:
    """A reason that no row above gives would hold nothing; `changed` comes from the act itself."""
    assert {row[3] for row in KEPT} == set(Reason) - {Reason.PROVED, Reason.CHANGED}


def test_a_segment_of_its_own_outlives_no_session() -> None:
    """Whose creator is known needs no quiet uid: a login shell does not keep it."""
    busy = replace(SCENE, users=Users(session=(5,)), others=(8,))
    assert judge(SEGMENT, busy).removes


def test_what_roots_services_make_is_not_told_of() -> None:
    """They make shared memory all the time: it is root's leases' only where its creator was seen in one."""
    scene = replace(SCENE, uid=0, users=Users(session=(1,)))
    roots = [replace(found, uid=0, creator_uid=0) for found in ALL]
    assert [judge(found, scene).removes for found in roots] == [True, False, False]
    assert not any(judge(found, replace(scene, lives=())).in_doubt for found in roots)
    assert judge(replace(roots[0], attached=1), scene).in_doubt


def test_whole_seconds_do_not_tell_against_a_lease() -> None:
    """Made in the second in which the lease or its creator began: what was there before is on record."""
    assert judge(replace(SEGMENT, created=1_004.0), SCENE).removes
    assert judge(replace(QUEUE, created=999.0), SCENE).removes


def test_a_name_is_shown_as_plain_text() -> None:
    """A file's name is its maker's: nothing of it reaches a terminal but printable ASCII."""
    shown = replace(FILE, name="a\x1b[2J\n\u202e\udcff").shown
    assert shown == "a\\x1b[2J\\n\\u202e\\udcff"
