"""The note and the ticket of a container's lease, and whose processes have that note among their mounts."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.adapters.container_files import ContainerFiles
from nodeagent.adapters.container_processes import LeaseMounts, container_of
from nodeagent.adapters.tickets import Tickets
from nodeagent.domain.container import NOTE
from nodeagent.domain.docker_ticket import digest
from nodeagent.domain.errors import OutsideFault

pytestmark = pytest.mark.root
STEM = "gpulease_test"
ID = "0123456789abcdef" * 4


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir(mode=0o711)
    return tmp_path / "run"


@pytest.fixture
def files(run: Path) -> ContainerFiles:
    return ContainerFiles(STEM, notes=run / "containers", tickets=run / "tickets")


def ticket_files(run: Path) -> set[str]:
    return {path.name for path in (run / "tickets" / STEM).iterdir()}


def test_a_leases_files_are_roots_alone(files: ContainerFiles, run: Path) -> None:
    """Nobody else can go where they lie; what is mounted can be read by all, and written by nobody."""
    note = files.prepare(7)
    files.verify(7)
    said = digest("ticket")
    files.admit(7, said, {"lease": 7})
    ticket = run / "tickets" / STEM / said
    assert json.loads(ticket.read_bytes()) == {"lease": 7}
    assert [stat.S_IMODE(path.stat().st_mode) for path in (note, ticket)] == [0o444, 0o600]
    for directory in (note.parent, note.parent.parent, ticket.parent, ticket.parent.parent):
        assert (directory.stat().st_uid, stat.S_IMODE(directory.stat().st_mode)) == (0, 0o700)


def test_a_note_that_others_could_write_is_none(files: ContainerFiles) -> None:
    """The lease is not granted with it, or not any more."""
    note = files.prepare(7)
    note.chmod(0o666)
    with pytest.raises(OutsideFault, match="root's alone"):
        files.verify(7)
    files.prepare(7)
    files.verify(7)


@pytest.mark.parametrize("spoiled", ["others' directory", "others may enter"])
def test_a_place_that_others_could_change_is_not_used(files: ContainerFiles, run: Path, spoiled: str) -> None:
    """Who made it first would decide what is mounted."""
    notes = run / "containers"
    notes.mkdir(mode=0o700)
    if spoiled == "others may enter":
        notes.chmod(0o755)
    else:
        os.chown(notes, 1000, 1000)
    with pytest.raises(OutsideFault, match=r"directory of root's"):
        files.prepare(7)


def test_a_ticket_says_on_what_it_was_spent(files: ContainerFiles, run: Path) -> None:
    """As we say it, or the plugin; anything else is no container's id."""
    files.prepare(7)
    assert files.bound(7) is None
    files.admit(7, digest("ticket"), {})
    assert files.bound(7) is None
    files.bind(7, ID)
    assert files.bound(7) == ID
    (run / "tickets" / STEM / f"{digest('ticket')}.bound").write_text('{"container": "../x"}')
    assert files.bound(7) is None


def test_all_goes_with_the_lease(files: ContainerFiles, run: Path) -> None:
    """The ticket, that it was spent, on what, and what a crash left half made; another lease's stay."""
    for lease in (7, 8):
        files.prepare(lease)
        files.admit(lease, digest(str(lease)), {})
        files.bind(lease, ID)
    (run / "tickets" / STEM / f"{digest('7')}.used").touch()
    (run / "tickets" / STEM / f"{digest('7')}.new").touch()
    assert files.leases() == {7, 8}
    files.remove(7)
    files.remove(7)
    assert files.leases() == {8}
    assert ticket_files(run) == {digest("8"), f"{digest('8')}.bound"}
    files.remove(8)
    files.leave()
    assert list(run.iterdir()) == []


def test_tickets_are_always_the_same_and_nobodys_guess(tmp_path: Path) -> None:
    """128 bits, of a key that each agent has of its own, and keeps to itself."""
    one, again, other = Tickets(tmp_path / "key"), Tickets(tmp_path / "key"), Tickets(tmp_path / "other")
    assert one.of(7) == again.of(7)
    assert len({one.of(7), one.of(8), other.of(7)}) == 3
    assert len(bytes.fromhex(one.of(7))) == 16
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert one.digest(7) == digest(one.of(7))
    assert {path.name for path in tmp_path.iterdir()} == {"key", "other"}


def test_a_key_that_was_cut_short_makes_no_tickets(tmp_path: Path) -> None:
    """Of an empty file everybody could make them."""
    (tmp_path / "key").touch()
    with pytest.raises(OutsideFault, match="no key"):
        Tickets(tmp_path / "key").of(7)


@contextlib.contextmanager
def mounting(source: Path, before: str = "true", target: str = NOTE) -> Iterator[int]:
    """The pid of a process that has *source* among its mounts, as one in a container has."""
    place = f"mount -t tmpfs none /etc && mkdir -p {Path(target).parent} && touch {target}"
    script = f"{before} && {place} && mount --bind {source} {target} && echo ready && exec sleep 60"
    with subprocess.Popen(["unshare", "--mount", "sh", "-ec", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
        child.kill()


def test_a_mount_proves_whose_a_process_is(files: ContainerFiles, run: Path) -> None:
    """Of the lease whose note it has, also when that has been removed; and of no other instance's."""
    mounts = LeaseMounts(run / "containers" / STEM)
    with mounting(files.prepare(7)) as pid:
        assert mounts.of(pid) == 7
        assert mounts.processes()[pid] == 7
        assert os.getpid() not in mounts.processes()
        assert LeaseMounts(run / "containers").of(pid) is None
        files.remove(7)
        assert mounts.of(pid) == 7


def test_a_note_below_a_containers_files_proves_nothing(files: ContainerFiles, run: Path) -> None:
    """docker's own look into a container mounts it there for all of the node: they are not in the lease."""
    with mounting(files.prepare(7), target=f"/etc/docker/merged{NOTE}") as pid:
        assert LeaseMounts(run / "containers" / STEM).of(pid) is None
        assert pid not in LeaseMounts(run / "containers" / STEM).processes()


def test_a_file_that_only_looks_like_a_note_proves_nothing(
    files: ContainerFiles, run: Path, tmp_path: Path
) -> None:
    """One at the very same path of another file system: who made it is not in the lease (threat 14)."""
    note = files.prepare(7)
    point = next(parent for parent in note.parents if parent.is_mount())
    mine, like = tmp_path / "mine", tmp_path / "mine" / note.relative_to(point)
    mine.mkdir()
    script = f"mount -t tmpfs none {mine} && mkdir -p {like.parent} && touch {like}"
    with mounting(like, script) as pid:
        assert LeaseMounts(run / "containers" / STEM).of(pid) is None


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (f"0::/system.slice/docker-{ID}.scope", ID),
        (f"0::/gpulease.slice/gpulease-7.slice/{ID}", ID),
        (f"12:memory:/docker/{ID}\n0::/", ID),
        (f"0::/machine.slice/libpod-{ID}.scope/container", ID),
        (f"0::/docker/{'f' * 64}/docker/{ID}", ID),
        ("0::/system.slice/docker-0123.scope", None),
        (f"0::/user.slice/x{ID}", None),
        ("", None),
    ],
)
def test_the_container_that_a_cgroup_is_named_for(tmp_path: Path, line: str, found: str | None) -> None:
    """By docker's, podman's and containerd's names; the innermost one."""
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "cgroup").write_text(f"{line}\n")
    assert container_of(5, tmp_path) == found
    assert container_of(6, tmp_path) is None
