"""A lease's cgroup: made once, opened by what it is, killed whole, removed empty."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree, nest_below
from nodeagent.adapters.cgroup_directory import open_beneath
from nodeagent.adapters.cgroup_sweep import signal_members, sweep
from nodeagent.domain.errors import OutsideFault

cgroup2 = pytest.mark.cgroup2
NOBODY = 54_321


@pytest.mark.parametrize(
    "name", ["", "other.slice", "gpulease.slice/x", "gpulease_a-b.slice", "../gpulease.slice"]
)
def test_an_instance_is_never_somebody_elses_directory(tmp_path: Path, name: str):
    """Only the agent's own names are instances."""
    with pytest.raises(OutsideFault):
        CgroupTree(tmp_path, name)


@pytest.mark.parametrize(
    ("caller", "parent"),
    [
        (None, None),
        ("/", None),
        ("/user.slice", None),
        ("/user.slice/user-1000.slice/session-3.scope", None),
        ("/user.slicer/x", "/user.slicer/x"),
        ("/system.slice/slurmstepd.scope/job_42/step_0/user/task_0",) * 2,
        ("/system.slice/docker-4f.scope",) * 2,
        ("/system.slice/cron.service",) * 2,
        ("/gpulease.slice/gpulease-7.slice",) * 2,
    ],
)
def test_callers_in_jobs_containers_and_services_nest(caller: str | None, parent: str | None):
    """Whoever is confined gets its lease below its own cgroup; the rest in the instance's subtree."""
    assert nest_below(caller) == parent


@cgroup2
def test_creating_twice_is_creating_once(tree: CgroupTree):
    """Create is idempotent and says where and which."""
    ref = tree.create(7)
    assert ref.path == f"{tree.instance}/{tree.instance[1:-6]}-7.slice"
    assert tree.create(7) == ref == tree.find(7)
    assert ref.inode == (tree.mount / ref.path[1:]).stat().st_ino


@cgroup2
def test_a_nested_cgroup_lies_below_its_parent_under_the_instances_name(tree: CgroupTree):
    """A nested lease is named for its instance, so two instances never share one."""
    parent = tree.create(1).path
    ref = tree.create(2, parent)
    assert ref.path.startswith(f"{parent}/{tree.instance[1:-6]}-2")
    assert tree.find(2, parent) == ref
    assert tree.find(2) is None


@cgroup2
def test_nesting_below_a_cgroup_that_is_gone_is_not_found(tree: CgroupTree):
    """A caller whose cgroup vanished gets none elsewhere."""
    with pytest.raises(FileNotFoundError):
        tree.create(2, f"{tree.instance}/gone")


@cgroup2
def test_a_cgroup_made_again_is_another(make_tree):
    """threat 15: what was made anew under a recorded name is neither opened nor killed."""
    for tree in (make_tree(), make_tree(kernel_resolves=False)):
        ref = tree.create(7)
        tree.remove(ref)
        again = tree.create(7)
        assert again.path == ref.path
        assert again.inode != ref.inode
        with pytest.raises(FileNotFoundError):
            tree.open(ref)
        tree.remove(ref)
        assert tree.find(7) == again


@cgroup2
def test_an_open_cgroup_stays_itself_when_its_name_goes_to_another(tree: CgroupTree, children):
    """Kill and remove by descriptor do not reach the cgroup that got the name meanwhile."""
    with tree.open(tree.create(7)) as old:
        tree.remove(old.ref)
        with tree.open(tree.create(7)) as new:
            pid, _ = children.connect()
            new.move(pid)
            old.kill()
            old.remove()
            assert (old.procs(), old.populated()) == ((), False)
            assert new.procs() == (pid,)
            assert children.answers(pid)


@pytest.mark.parametrize("kernel_resolves", [True, False])
def test_a_symbolic_link_is_never_followed(tmp_path: Path, kernel_resolves: bool):
    """threat 16: a link in the place of a component, first or last, is a fault, not a way."""
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    for path in ("/link", "/link/inner"):
        with pytest.raises(OutsideFault, match="link"):
            open_beneath(tmp_path, path, kernel_resolves=kernel_resolves)
    os.close(open_beneath(tmp_path, "/real/inner", kernel_resolves=kernel_resolves))


@pytest.mark.parametrize("path", ["", "x", "/..", "/a/../../etc", "/a//b", "/./a", "/a/", "/a\0b"])
def test_a_path_that_walks_is_refused(tmp_path: Path, path: str):
    """threat 15: a crafted path does not leave the mount."""
    with pytest.raises(OutsideFault, match="plain absolute"):
        open_beneath(tmp_path, path)


@cgroup2
def test_a_populated_cgroup_is_not_removed(tree: CgroupTree, children):
    """Removing under a living process is a fault that says so."""
    ref = tree.create(7)
    pid, _ = children.connect()
    with tree.open(ref) as cgroup:
        cgroup.move(pid)
        assert (cgroup.procs(), cgroup.populated()) == ((pid,), True)
        with pytest.raises(OutsideFault, match="populated"):
            cgroup.remove()
    assert tree.find(7) == ref


@cgroup2
def test_removing_takes_empty_children_along(tree: CgroupTree):
    """A container's leftover cgroups below the lease's go with it, bottom up; again is success."""
    ref = tree.create(7)
    (tree.mount / ref.path[1:] / "a" / "b").mkdir(parents=True)
    tree.remove(ref)
    tree.remove(ref)
    assert tree.find(7) is None


@cgroup2
def test_moving_who_is_gone_says_so(tree: CgroupTree, children):
    """A process that ended before the move is told as such."""
    pid = children.fork(lambda: None)
    children.end(pid)
    with tree.open(tree.create(7)) as cgroup, pytest.raises(ProcessLookupError):
        cgroup.move(pid)


def storm() -> None:
    """Fork until killed, a few at a time, each child forking on."""
    for _ in range(8):
        if os.fork() == 0:
            while True:
                if os.fork() != 0:
                    os._exit(0)
    signal.pause()


@cgroup2
@pytest.mark.parametrize("kernel_kills", [True, False], ids=["cgroup.kill", "before Linux 5.14"])
def test_a_storm_of_forks_is_killed_whole(make_tree, children, kernel_kills: bool):
    """Kill reaches every process, also those born meanwhile and those in cgroups below."""
    tree = make_tree(kernel_kills=kernel_kills)
    with tree.open(tree.create(7)) as cgroup:
        inner, _ = children.connect()
        with tree.open(tree.create(8, cgroup.path)) as below:
            below.move(inner)
        pid, _ = children.connect(lambda connection: (connection.recv(1), storm()))
        cgroup.move(pid)
        children.started[pid].send(b"!")
        while len(cgroup.procs()) < 4:
            pass
        cgroup.kill()
        while cgroup.populated():
            pass
        assert cgroup.procs() == ()


@cgroup2
def test_the_sweep_leaves_outsiders_alone(make_tree, children):
    """Killing one by one reaches members only."""
    tree = make_tree(kernel_kills=False)
    outsider, _ = children.connect()
    member, _ = children.connect()
    with tree.open(tree.create(7)) as cgroup:
        cgroup.move(member)
        cgroup.kill()
        while cgroup.populated():
            pass
    assert children.answers(outsider)


def test_the_sweep_kills_in_a_frozen_cgroup_and_thaws_it(plain, monkeypatch):
    """Nobody forks while the members are listed, and who enters later is not found frozen."""
    directory = plain.root / "sweep"
    plain.cgroup("/sweep", cgroup__freeze="0", cgroup__procs="4242\n")
    frozen: list[str] = []

    def kill(at: int, pids: list[int], number: int) -> None:
        frozen.append((directory / "cgroup.freeze").read_text())
        (directory / "cgroup.procs").write_text("")

    monkeypatch.setattr("nodeagent.adapters.cgroup_sweep.signal_members", kill)
    with plain.tree.open(plain.tree.resolve("/sweep")) as cgroup:
        sweep(cgroup.fileno())
    assert frozen == ["1"]
    assert (directory / "cgroup.freeze").read_text() == "0"


@cgroup2
def test_a_pid_that_left_since_it_was_listed_is_not_signalled(tree: CgroupTree, children):
    """A listed pid that now is somebody else's, outside the cgroup, is left alone."""
    outsider, _ = children.connect()
    with tree.open(tree.create(7)) as cgroup:
        signal_members(cgroup.fileno(), [outsider], signal.SIGKILL)
    assert children.answers(outsider)


@cgroup2
def test_a_cgroup_is_populated_while_a_member_lives(tree: CgroupTree, children):
    """It says so of the living, and no longer once they ended."""
    pid, _ = children.connect()
    with tree.open(tree.create(7)) as cgroup:
        cgroup.move(pid)
        assert cgroup.populated()
        children.end(pid)
        while cgroup.populated():
            pass


@cgroup2
def test_ids_are_read_from_the_instances_own_children_only(tree: CgroupTree):
    """threat 14: deeper look-alikes, other names and odd numbers are no lease's."""
    ref = tree.create(7)
    tree.create(1_000_042)
    stem = tree.instance[1:-6]
    directory = tree.mount / tree.instance[1:]
    for name in (
        "gpulease-99.slice",
        f"{stem}-007.slice",
        f"{stem}-0.slice",
        f"{stem}-x.slice",
        f"{stem}-5.scope",
    ):
        (directory / name).mkdir()
    (tree.mount / ref.path[1:] / f"{stem}-98.slice").mkdir()
    assert tree.lease_ids() == {7, 1_000_042}
    assert tree.existing()[7] == ref


@cgroup2
@pytest.mark.root
def test_a_cgroup_that_a_user_made_is_no_leases(tree: CgroupTree):
    """threat 14: a look-alike of another owner is not listed, not found, and not taken for a new lease."""
    ref = tree.create(7)
    os.chown(tree.mount / ref.path[1:], NOBODY, NOBODY)
    assert tree.lease_ids() == frozenset()
    assert tree.find(7) is None
    with pytest.raises(OutsideFault, match=f"uid {NOBODY}"):
        tree.create(7)


@cgroup2
@pytest.mark.root
def test_an_instance_that_a_user_owns_has_no_leases(tree: CgroupTree):
    """threat 14: who owns the directory can rename what lies in it, so its names say nothing."""
    tree.create(7)
    os.chown(tree.mount / tree.instance[1:], NOBODY, NOBODY)
    assert tree.lease_ids() == frozenset()


def test_no_instance_has_no_ids(tmp_path: Path):
    """A node on which no lease was ever made has none."""
    assert CgroupTree(tmp_path, "gpulease.slice").lease_ids() == frozenset()


@cgroup2
def test_a_process_cgroup_is_told(tree: CgroupTree, children):
    """The cgroup of a process is its path below the mount, and None once it is gone."""
    pid, _ = children.connect()
    ref = tree.create(7)
    with tree.open(ref) as cgroup:
        cgroup.move(pid)
    assert tree.cgroup_of(pid) == ref.path
    children.end(pid)
    assert tree.cgroup_of(pid) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0::/a/b\n", "/a/b"),
        ("12:pids:/x\n1:name=systemd:/y\n0::/\n", "/"),
        ("12:pids:/a/b\n", None),
        ("0::/../a/b\n", None),
        ("0::/a/gone\n", None),
        ("0::/a/b (deleted)\n", None),
        ("0::/..\n", None),
    ],
    ids=["plain", "hybrid root", "version 1 only", "other namespace", "gone", "deleted", "above"],
)
def test_only_a_cgroup_that_the_agent_sees_counts(tmp_path: Path, text: str, expected: str | None):
    """threat 14: a path of another namespace's view, or of nothing, is None."""
    (tmp_path / "mount" / "a" / "b").mkdir(parents=True)
    (tmp_path / "proc" / "9").mkdir(parents=True)
    (tmp_path / "proc" / "9" / "cgroup").write_text(text)
    tree = CgroupTree(tmp_path / "mount", "gpulease.slice", proc=tmp_path / "proc")
    assert tree.cgroup_of(9) == expected


@cgroup2
def test_a_writable_mount_has_no_reason_against_it(make_tree):
    """Where cgroups can be made there is nothing to say."""
    assert make_tree().writable() is None


def test_no_mount_is_a_reason(tmp_path: Path):
    """A directory that is no cgroup2 mount is named."""
    assert "no cgroup2 mount" in (CgroupTree(tmp_path, "gpulease.slice").writable() or "")


@pytest.mark.root
def test_no_right_is_a_reason(plain, children):
    """A user's agent without a delegated subtree is told why it makes no cgroups."""
    plain.root.chmod(0o755)

    def as_user() -> None:
        os.chdir(plain.root)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        reason = CgroupTree(Path(), "gpulease.slice").writable() or ""
        assert "not allowed" in reason
        assert "EACCES" in reason

    pid = children.fork(as_user)
    children.started.pop(pid)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_enabling_goes_from_the_root_to_the_parent(plain):
    """Every ancestor offers the controller to its children, the cgroup itself does not."""
    for path in ("/", "/a", "/a/b"):
        plain.cgroup(path, cgroup__subtree_control="memory\n")
    plain.tree.enable("dmem", "/a/b")
    texts = [(plain.root / at / "cgroup.subtree_control").read_text() for at in ("", "a", "a/b")]
    assert texts == ["+dmem", "+dmem", "memory\n"]
    plain.cgroup("/", cgroup__subtree_control="memory dmem\n")
    plain.tree.enable("dmem", "/a")
    assert (plain.root / "cgroup.subtree_control").read_text() == "memory dmem\n"


@cgroup2
def test_enabling_what_the_kernel_lacks_is_explained(tree: CgroupTree):
    """A controller that nobody offers is a fault that names the file and the controller."""
    with pytest.raises(OutsideFault, match=r"subtree_control.*\+nonsense"):
        tree.enable("nonsense", tree.create(7).path)


@cgroup2
def test_an_empty_instance_can_leave(tree: CgroupTree):
    """An agent that ends for good takes its empty directory along, and never one that holds a lease."""
    ref = tree.create(7)
    tree.leave()
    assert tree.find(7) == ref
    tree.remove(ref)
    tree.leave()
    tree.leave()
    assert tree.resolve(tree.instance) is None


@cgroup2
def test_a_reference_to_nothing_is_not_found(tree: CgroupTree):
    """A recorded cgroup that is gone is not found, and removing it is success."""
    ref = CgroupRef(f"{tree.instance}/never", 1)
    with pytest.raises(FileNotFoundError):
        tree.open(ref)
    tree.remove(ref)
    assert tree.resolve(ref.path) is None
