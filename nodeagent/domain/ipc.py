"""What programs leave in shared memory when they end, and whether it may go with their lease: only by proof.

Names prove nothing. A segment's creator is told by the kernel; a queue's and a file's is not, so for those it
counts that nobody else of the uid could have made or could still want them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

# Made by whoever comes first and used by every uid of the node: rocm_smi_lib's and amdsmi's mutexes, and what
# ROCT made until 2023 (ROCm/rocm_smi_lib#88).
NODE_WIDE = ("rocm_smi_", "hsakmt_", "sem.hsakmt_")
SEMAPHORE_FILE = "sem."  # what sem_open(3) puts before a name
CLOCK_STEP_SECONDS = 2.0  # more than a leap second: the wall clock was set


class Kind(StrEnum):
    SEGMENT = "sysv-shm"
    QUEUE = "sysv-msg"
    SEMAPHORES = "sysv-sem"
    FILE = "posix-shm"


class Reason(StrEnum):
    """Why an object goes or stays."""

    PROVED = "proved"  # it goes
    SEMAPHORE = "semaphore"
    NODE_WIDE = "node_wide"
    ODD_FILE = "odd_file"
    OTHER_OWNER = "other_owner"
    BEFORE = "before"
    EARLIER = "earlier"
    UNCOUNTED = "uncounted"
    CLOCK_SET = "clock_set"
    UNDATED = "undated"
    NAMESPACE = "namespace"
    ATTACHED = "attached"
    UNKNOWN_CREATOR = "unknown_creator"
    UNKNOWN_USER = "unknown_user"
    OTHER_LEASE = "other_lease"
    SESSION = "session"
    UNSEEN = "unseen"
    OPEN = "open"
    CHANGED = "changed"  # between the proof and the act


# An object that stays for one of these was never in question: nobody need be told at a lease's end.
NOT_THE_LEASES = frozenset(
    {Reason.NODE_WIDE, Reason.ODD_FILE, Reason.OTHER_OWNER, Reason.BEFORE, Reason.EARLIER}
)
# Of root's: its services make shared memory all the time, in no lease.
NOT_ROOTS_LEASES = frozenset({Reason.SEMAPHORE, Reason.UNKNOWN_CREATOR, Reason.UNKNOWN_USER, Reason.SESSION})


@dataclass(frozen=True, slots=True)
class Found:
    """One object, as it was seen. Two that are equal are the same object, unchanged."""

    kind: Kind
    name: str  # the id in decimal, or the file's name, surrogates for what is no text
    key: int  # of a SysV object; a file's inode
    uid: int  # who may remove it
    creator_uid: int  # a file tells only its owner
    created: float | None  # wall clock, s, rounded down to *grain*; None where it is not told
    creator_pid: int = 0  # 0 where it is not told
    last_pids: tuple[int, ...] = ()  # who attached or detached, or sent and received last
    attached: int = 0
    size_bytes: int = 0
    plain: bool = True  # of a file: a regular one that has no other name

    @property
    def token(self) -> str:
        """What tells it from all others as long as it lives, also under a new name."""
        return f"{self.kind}:{self.key if self.kind is Kind.FILE else self.name}"

    @property
    def grain(self) -> float:
        """How exact *created* is, s."""
        return 0.1 if self.kind is Kind.FILE else 1.0

    @property
    def shown(self) -> str:
        """The name in printable ASCII: a file's is its maker's text."""
        return ascii(self.name)[1:-1]


@dataclass(frozen=True, slots=True)
class Life:
    """A process that was seen in a lease; wall clock, s. *ended* None: it was there at the last look."""

    pid: int
    began: float
    ended: float | None = None

    def made(self, found: Found) -> bool:
        """Whether *found* tells this pid as its creator's, and was made while this process had it."""
        if found.creator_pid != self.pid or found.created is None or found.created + found.grain < self.began:
            return False
        return self.ended is None or found.created <= self.ended


@dataclass(frozen=True, slots=True)
class Users:
    """Who, outside the lease, could still want what it leaves."""

    session: tuple[int, ...] = ()  # processes of its uid
    alive: frozenset[int] = frozenset()  # of those that used a SysV object last, the ones that run
    open_by: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # by token; (): by whom is not known
    unseen: frozenset[str] = frozenset()  # tokens of files that somebody may have open who was not looked at


@dataclass(frozen=True, slots=True)
class Scene:
    """What is known of one lease, and of the node around it."""

    uid: int
    since: float  # when it began, before anyone could enter it; wall clock, s
    before: Collection[str] | None  # tokens of what its uid had by then; None: too much to be written down
    clock_set: bool  # since then
    lives: Sequence[Life]  # who was in it
    namespaces: Collection[Kind]  # what its processes have of their own, which ends with them
    others: Sequence[int]  # further live leases of the uid
    elsewhere: Sequence[Life]  # who was in those
    users: Users


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an object goes; *detail* is for people."""

    found: Found
    reason: Reason
    detail: str

    @property
    def removes(self) -> bool:
        return self.reason is Reason.PROVED

    @property
    def in_doubt(self) -> bool:
        """Whether it stays although it may be the lease's."""
        if self.found.uid == 0 and self.reason in NOT_ROOTS_LEASES:
            return False
        return not self.removes and self.reason not in NOT_THE_LEASES


_Doubt = tuple[Reason, str] | None


def judge(found: Found, scene: Scene) -> Verdict:
    """Whether *found* goes with the lease of *scene*; the first doubt keeps it."""
    for doubts in (_what_it_is, _when_it_was_made, _whose_it_is, _who_has_it):
        doubt = doubts(found, scene)
        if doubt is not None:
            return Verdict(found, *doubt)
    return Verdict(found, Reason.PROVED, _PROOFS[found.kind])


_PROOFS = {
    Kind.SEGMENT: "made by a process of the lease, and attached by nobody",
    Kind.QUEUE: "made within the lease, whose uid has nothing else on the node",
    Kind.FILE: "made within the lease, whose uid has nothing else on the node, and open nowhere",
}


def _what_it_is(found: Found, scene: Scene) -> _Doubt:
    is_file = found.kind is Kind.FILE
    if is_file and found.name.startswith(NODE_WIDE):
        return Reason.NODE_WIDE, "a mutex of the whole node"
    if found.kind is Kind.SEMAPHORES or (is_file and found.name.startswith(SEMAPHORE_FILE)):
        return Reason.SEMAPHORE, "semaphores do not tell who uses them"
    if not found.plain:
        return Reason.ODD_FILE, "no plain file, or one that has another name too"
    if (found.uid, found.creator_uid) != (scene.uid, scene.uid):
        return Reason.OTHER_OWNER, f"made by uid {found.creator_uid}, owned by uid {found.uid}"
    return None


def _when_it_was_made(found: Found, scene: Scene) -> _Doubt:
    if scene.before is None:
        return Reason.UNCOUNTED, "the uid had too many objects when the lease began to tell them apart"
    if found.token in scene.before:
        return Reason.BEFORE, "it was there before the lease"
    if scene.clock_set:
        return Reason.CLOCK_SET, "the wall clock was set during the lease: times tell nothing"
    if found.created is None:
        return Reason.UNDATED, "this kernel does not tell when it was made"
    if found.created + found.grain < scene.since:
        return Reason.EARLIER, "it was made before the lease"
    return None


def _whose_it_is(found: Found, scene: Scene) -> _Doubt:
    if found.kind in scene.namespaces:
        return Reason.NAMESPACE, "processes of the lease had a namespace of their own: theirs went with it"
    if found.kind is Kind.SEGMENT:
        return _creator(found, scene)
    if found.kind is Kind.QUEUE:
        known = {life.pid for life in scene.lives}
        unknown = [pid for pid in found.last_pids if pid not in known]
        if unknown:
            return Reason.UNKNOWN_USER, f"last used by {_processes(unknown)}, not seen in the lease"
    if scene.others:
        return Reason.OTHER_LEASE, f"its uid has further leases: {', '.join(map(str, scene.others[:8]))}"
    if scene.users.session:
        return Reason.SESSION, f"its uid runs outside the lease: {_processes(scene.users.session)}"
    return None


def _creator(found: Found, scene: Scene) -> _Doubt:
    if not any(life.made(found) for life in scene.lives):
        return Reason.UNKNOWN_CREATOR, f"made by process {found.creator_pid}, not seen in the lease"
    if any(life.made(found) for life in scene.elsewhere):
        return Reason.OTHER_LEASE, f"made by process {found.creator_pid}, which was in another lease too"
    return None


def _who_has_it(found: Found, scene: Scene) -> _Doubt:
    if found.attached:
        return Reason.ATTACHED, f"attachments: {found.attached}"
    if found.kind is not Kind.FILE:
        using = [pid for pid in found.last_pids if pid in scene.users.alive]
        return (Reason.UNKNOWN_USER, f"last used by {_processes(using)} outside the lease") if using else None
    holders = scene.users.open_by.get(found.token)
    if holders is not None:
        return Reason.OPEN, f"open or mapped by {_processes(holders) if holders else 'somebody'}"
    unseen = found.token in scene.users.unseen
    return (Reason.UNSEEN, "not every process could be looked at") if unseen else None


def _processes(pids: Sequence[int]) -> str:
    more = " and more" if len(pids) > 8 else ""
    return f"process {', '.join(map(str, pids[:8]))}{more}"
