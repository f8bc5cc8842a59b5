"""Shared memory of real users in real cgroups: what a lease takes along, and what it tells of the rest."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from ipc_house import CGROUP, OTHER, UID, IpcHouse, Maker, kinds, verdicts
from service_builders import until, user

from nodeagent.adapters.ipc import IpcSpace
from nodeagent.domain.errors import NotAllowed, OutsideFault
from nodeagent.domain.ipc import Kind, Reason
from nodeagent.domain.lease import Holder, HolderKind, LeaseState
from nodeagent.service import shared_memory
from nodeagent.service.ipc_effects import IpcMeans
from nodeagent.service.shared_memory import IPC, wrapper_of

pytestmark = [pytest.mark.root, pytest.mark.cgroup2]


def test_what_a_leases_programs_left_goes_with_it(ipc: IpcHouse, makers, name: str) -> None:
    """Segment, queue and file are gone after the release; the journal and an event say so."""
    lease = ipc.take()
    makers(UID, "segment", "queue", f"file {name}", lease=(ipc, lease))
    assert ipc.release(lease).state is LeaseState.RELEASED
    assert kinds() == set()
    assert name in ipc.told(lease, "ipc_removed")
    assert "ipc_left" not in ipc.kinds(lease)
    left = ipc.shared_memory.view(lease)
    assert left.ended and all(one["goes"] for one in left.objects)
    assert {one["kind"] for one in left.objects} == {"sysv-shm", "sysv-msg", "posix-shm"}


def test_nothing_of_before_and_nothing_of_others_goes(ipc: IpcHouse, makers, name: str) -> None:
    """What the user had already, and what neighbours make meanwhile, stays, and is nobody's business."""
    makers(UID, "segment", "queue", f"file {name}").end()
    lease, neighbour = ipc.take(), ipc.take(OTHER)
    makers(OTHER, "segment", "queue", f"file {name}-other", lease=(ipc, neighbour))
    makers(UID, lease=(ipc, lease))
    ipc.release(lease)
    assert kinds() == kinds(OTHER) == {Kind.SEGMENT, Kind.QUEUE, Kind.FILE}
    assert ipc.kinds(lease) == ["granted", "releasing", "released"]


def test_a_session_keeps_what_has_no_creator(ipc: IpcHouse, makers, name: str) -> None:
    """A shell of the user could have made the queue and the file; of the segment the creator is known."""
    lease = ipc.take()
    makers(UID, "segment", "queue", f"file {name}", lease=(ipc, lease))
    session = makers(UID)
    ipc.release(lease)
    assert kinds() == {Kind.QUEUE, Kind.FILE}
    assert f"process {session.process.pid}" in ipc.told(lease, "ipc_left")


def test_another_lease_of_the_user_keeps_what_has_no_creator(ipc: IpcHouse, makers, name: str) -> None:
    """The file could be the other lease's; it stays, and the lease is named."""
    lease, other = ipc.take(), ipc.take()
    makers(UID, "segment", f"file {name}", lease=(ipc, lease))
    ipc.release(lease)
    assert kinds() == {Kind.FILE}
    assert str(other.id) in ipc.told(lease, "ipc_left")


def test_a_creator_that_was_not_seen_proves_nothing(ipc: IpcHouse, makers) -> None:
    """Come and gone between two looks: its segment stays, and the release is none the worse."""
    lease = ipc.take()
    maker = makers(UID)
    ipc.enter(lease, maker.process.pid)
    maker.make("segment")
    maker.end()
    assert ipc.release(lease).state is LeaseState.RELEASED
    assert kinds() == {Kind.SEGMENT}
    assert "not seen in the lease" in ipc.told(lease, "ipc_left")


def test_who_attaches_is_seen_at_once(ipc: IpcHouse, makers) -> None:
    """The holder's first process counts however soon it ends: no look of the reconciler is needed."""
    lease = ipc.take()
    maker = makers(UID)
    ipc.enter(lease, maker.process.pid)
    ipc.census.enter(lease.id, maker.process.pid)
    maker.make("segment")
    maker.end()
    ipc.release(lease)
    assert kinds() == set()


def test_a_restart_forgets_who_was_seen(ipc: IpcHouse, makers, tmp_path: Path) -> None:
    """A creator that ended before is not known to the new agent: what it made stays, and is told."""
    lease = ipc.take()
    makers(UID, "segment", lease=(ipc, lease)).end()
    ipc.die()
    again = IpcHouse(tmp_path / "state", tmp_path / "machine", ipc.clock, tree=ipc.tree, timeout=20)
    again.open()
    again.release(lease)
    assert kinds() == {Kind.SEGMENT}
    assert "not seen in the lease" in again.told(lease, "ipc_left")
    again.die()


def test_what_is_attached_stays(ipc: IpcHouse, makers) -> None:
    """Somebody outside uses the lease's segment: it is not taken away, and says how often it is attached."""
    lease = ipc.take()
    makers(UID, "segment", lease=(ipc, lease))
    (segment,) = ipc.space.find(UID).found
    attached = subprocess.Popen(
        [
            "/usr/bin/python3",
            "-c",
            f"import ctypes; ctypes.CDLL(None).shmat({segment.name}, None, 0); input()",
        ],
        stdin=subprocess.PIPE,
    )
    until(lambda: ipc.space.find(UID).found[0].attached)
    ipc.release(lease)
    assert kinds() == {Kind.SEGMENT}
    assert "attachments: 1" in ipc.told(lease, "ipc_left")
    attached.communicate()


def test_semaphores_stay(ipc: IpcHouse, makers) -> None:
    """They tell nobody's pid; they go with their namespace only."""
    lease = ipc.take()
    makers(UID, "semaphore", lease=(ipc, lease))
    ipc.release(lease)
    assert kinds() == {Kind.SEMAPHORES}


def test_a_namespace_of_its_own_is_left_alone(ipc: IpcHouse, makers) -> None:
    """Whose processes have another IPC namespace left theirs there: nothing here is theirs for certain."""
    lease = ipc.take()
    maker = Maker(as_root=True)
    ipc.enter(lease, maker.process.pid)
    maker.make("unshare")
    makers(UID, "segment", lease=(ipc, lease))
    ipc.release(lease)
    maker.end()
    assert kinds() == {Kind.SEGMENT}
    assert "namespace" in ipc.told(lease, "ipc_left")


def test_a_clock_that_was_set_leaves_everything(ipc: IpcHouse, makers, name: str) -> None:
    """Times of before and after the step cannot be compared."""
    lease = ipc.take()
    makers(UID, "segment", f"file {name}", lease=(ipc, lease))
    ipc.clock.step = 3600.0
    ipc.release(lease)
    assert kinds() == {Kind.SEGMENT, Kind.FILE}
    assert "clock" in ipc.told(lease, "ipc_left")


def test_the_dry_run_says_what_would_go_and_why_not(ipc: IpcHouse, makers, name: str) -> None:
    """Nothing is touched; with the cause gone, the same object goes. Only administrators are told."""
    lease = ipc.take()
    makers(UID, "segment", f"file {name}", lease=(ipc, lease))
    session = makers(UID)
    assert verdicts(ipc, lease) == {"sysv-shm": Reason.PROVED, "posix-shm": Reason.SESSION}
    session.end()
    assert verdicts(ipc, lease) == {"sysv-shm": Reason.PROVED, "posix-shm": Reason.PROVED}
    assert kinds() == {Kind.SEGMENT, Kind.FILE}
    with pytest.raises(NotAllowed):
        ipc.agent.left(user(UID), lease.id)


def test_the_wrapper_of_a_run_is_no_session(ipc: IpcHouse, makers, name: str) -> None:
    """The process that took the lease for what runs in its cgroup is the lease's: its file goes."""
    wrapper = makers(UID)
    pid = wrapper.process.pid
    lease = ipc.grant(user(UID, pid), cus=8, anchor=CGROUP, holder=(HolderKind.PROCESS, str(pid)))
    makers(UID, f"file {name}", lease=(ipc, lease))
    ipc.release(lease)
    assert kinds() == set()


def test_a_later_process_of_the_wrappers_pid_is_a_session(ipc: IpcHouse, makers, name: str) -> None:
    """It began after the lease, so it is another, and could have made the file itself."""
    lease = ipc.take(holder=(HolderKind.PROCESS, str(os.getpid())))
    assert wrapper_of(lease) == os.getpid()
    later = makers(UID).process.pid
    assert wrapper_of(replace(lease, holder=Holder(HolderKind.PROCESS, str(later), UID))) is None


def test_a_fault_holds_up_no_release(ipc: IpcHouse, makers, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be looked at holds no GPU: the slice is free, and the fault is told."""
    lease = ipc.take()
    makers(UID, "segment", lease=(ipc, lease))

    def refuse(self: IpcSpace, uid: int) -> None:
        raise OutsideFault("/proc/sysvipc/shm", "made to fail")

    with monkeypatch.context() as patch:
        patch.setattr(IpcSpace, "find", refuse)
        assert ipc.release(lease).state is LeaseState.RELEASED
    assert "made to fail" in ipc.told(lease, "ipc_left")
    assert ipc.shared_memory.view(lease).note == "/proc/sysvipc/shm: made to fail"


def test_a_kernel_that_says_no_is_told(ipc: IpcHouse, makers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proved and yet not removed: the object is told as left, with the kernel's word."""
    lease = ipc.take()
    makers(UID, "segment", lease=(ipc, lease))

    def refuse(self: IpcSpace, found: object) -> bool:
        raise OutsideFault("sysv-shm", "not allowed")

    with monkeypatch.context() as patch:
        patch.setattr(IpcSpace, "remove", refuse)
        ipc.release(lease)
    assert kinds() == {Kind.SEGMENT}
    assert "not allowed" in ipc.told(lease, "ipc_left")


def test_a_walk_that_comes_again_tells_nothing_twice(ipc: IpcHouse, makers) -> None:
    """While something else waits the undo is called again and again: one event, one answer."""
    lease = ipc.take()
    makers(UID, "semaphore", lease=(ipc, lease))
    record = next(one for one in ipc.ledger.effects(lease.id) if one.kind == IPC)
    effect = ipc.tiers.effects[IPC]
    first = effect.undo(record.arguments, record.evidence or {})
    assert effect.undo(record.arguments, record.evidence or {}) == first
    assert ipc.kinds(lease).count("ipc_left") == 1


def test_turned_off_nothing_is_planned(ipc: IpcHouse) -> None:
    """The site says no: no effect in the journal, and the node says why."""
    off = IpcMeans("turned off by release.ipc")
    ipc.planner._means = (off,)
    lease = ipc.take()
    assert IPC not in [record.kind for record in ipc.ledger.effects(lease.id)]
    assert (off.tier().present, off.tier().why) == (False, "turned off by release.ipc")
    assert ipc.shared_memory.view(lease).objects == ()


def test_what_could_not_be_written_down_is_not_removed(
    ipc: IpcHouse, makers, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user with too many objects at the lease's begin keeps all: nobody could tell new from old."""
    monkeypatch.setattr(shared_memory, "MOST_BEFORE", 0)
    makers(UID, f"file {name}").end()
    lease = ipc.take()
    makers(UID, "segment", lease=(ipc, lease))
    ipc.release(lease)
    assert kinds() == {Kind.SEGMENT, Kind.FILE}
