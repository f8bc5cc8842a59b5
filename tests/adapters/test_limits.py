"""What a caller's cgroup limits, and that a lease's cgroup limits no less."""

from __future__ import annotations

from fractions import Fraction

import pytest

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.limits import Limits, apply, effective_limits, loosens
from nodeagent.domain.errors import OutsideFault

SESSION = "/user.slice/user-1000.slice/session-3.scope"
LEASE = "/gpulease.slice/gpulease-7.slice"
UNLIMITED = {"memory__max": "max\n", "pids__max": "max\n", "cpu__max": "max 100000\n"}


def test_the_tightest_ancestor_counts(plain):
    """Each limit is the least one on the way to the root."""
    plain.cgroup("/user.slice", memory__max="2000\n", pids__max="50\n", cpu__max="max 100000\n")
    plain.cgroup("/user.slice/user-1000.slice", memory__max="1000\n", pids__max="max\n", memory__high="900\n")
    plain.cgroup(
        SESSION, memory__max="max\n", pids__max="70\n", cpu__max="150000 100000\n", memory__swap__max="0\n"
    )
    assert effective_limits(plain.tree, SESSION) == Limits(
        memory_max=1000, memory_high=900, memory_swap_max=0, pids_max=50, cpu_max=Fraction(3, 2)
    )


def test_a_cpuset_is_the_nearest_one(plain):
    """The effective list of the nearest cgroup that has one is taken: the kernel intersected it already."""
    plain.cgroup("/", cpuset__cpus__effective="0-7\n")
    plain.cgroup("/user.slice", cpuset__cpus__effective="0-1,3\n")
    plain.cgroup(SESSION, cpuset__cpus__effective="\n")
    assert effective_limits(plain.tree, SESSION).cpuset_cpus == frozenset({0, 1, 3})


@pytest.mark.parametrize("text", ["", "\n", "max", "nonsense", "-1", "1 2 3"])
def test_what_is_no_number_limits_nothing(plain, text: str):
    """Missing, empty and odd files are no limit."""
    plain.cgroup(SESSION, memory__max=text, cpu__max=text)
    assert effective_limits(plain.tree, SESSION) == Limits()


def test_a_cgroup_that_is_gone_limits_nothing(plain):
    """A path that vanished has its ancestors' limits left."""
    plain.cgroup("/user.slice", pids__max="5")
    assert effective_limits(plain.tree, "/user.slice/gone") == Limits(pids_max=5)


@pytest.mark.parametrize(
    ("caller", "lease", "expected"),
    [
        (Limits(), Limits(), ()),
        (Limits(), Limits(memory_max=1), ()),
        (Limits(memory_max=5), Limits(memory_max=5), ()),
        (Limits(memory_max=5), Limits(memory_max=6), ("memory.max",)),
        (Limits(memory_swap_max=0), Limits(), ("memory.swap.max",)),
        (Limits(pids_max=20, cpu_max=Fraction(1, 2)), Limits(pids_max=21), ("pids.max", "cpu.max")),
        (Limits(cpuset_cpus=frozenset({1, 2})), Limits(cpuset_cpus=frozenset({2})), ()),
        (Limits(cpuset_cpus=frozenset({1, 2})), Limits(cpuset_cpus=frozenset({2, 3})), ("cpuset.cpus",)),
        (Limits(cpuset_cpus=frozenset({1})), Limits(), ("cpuset.cpus",)),
    ],
)
def test_a_move_that_loosens_names_what(caller: Limits, lease: Limits, expected: tuple[str, ...]):
    """threat 9: every limit that a move would shed is named by its file."""
    assert loosens(caller, lease) == expected


def test_limits_survive_the_journal():
    """Limits written as text read back the same; unset ones are not written."""
    limits = Limits(memory_max=7, cpu_max=Fraction(2, 3), cpuset_cpus=frozenset({0, 1, 9}))
    assert limits.to_json() == {"memory_max": "7", "cpu_max": "2/3", "cpuset_cpus": "0,1,9"}
    assert Limits.from_json(limits.to_json()) == limits
    assert Limits().to_json() == {}
    with pytest.raises(ValueError, match="no limit is named hugetlb"):
        Limits.from_json({"hugetlb": "1"})


def test_the_callers_limits_are_copied(plain):
    """threat 9: what the lease's cgroup does not have from above is written into it."""
    ref = plain.cgroup(LEASE, **UNLIMITED, cpuset__cpus="", cpuset__cpus__effective="0-3\n")
    limits = Limits(memory_max=4096, pids_max=20, cpu_max=Fraction(1, 3), cpuset_cpus=frozenset({1, 3}))
    left = apply(plain.tree, ref, limits)
    files = {
        name: (plain.root / LEASE[1:] / name).read_text()
        for name in ("memory.max", "pids.max", "cpuset.cpus")
    }
    assert files == {"memory.max": "4096", "pids.max": "20", "cpuset.cpus": "1,3"}
    assert (plain.root / LEASE[1:] / "cpu.max").read_text() == "33333 100000"
    assert left == ("cpuset.cpus",)  # the imitation does not update the effective list


def test_tighter_limits_from_above_stay(plain):
    """A lease below a tighter cgroup gets nothing written: the tighter one counts anyway."""
    plain.cgroup("/gpulease.slice", pids__max="10\n")
    ref = plain.cgroup(LEASE, pids__max="max\n")
    assert apply(plain.tree, ref, Limits(pids_max=20)) == ()
    assert (plain.root / LEASE[1:] / "pids.max").read_text() == "max\n"


def test_a_missing_controller_is_reported_not_skipped(plain):
    """A limit that cannot be copied is told, so that the attach can be refused."""
    ref = plain.cgroup(LEASE)
    assert apply(plain.tree, ref, Limits(memory_max=1)) == ("memory.max",)


def test_nothing_is_read_through_a_link(plain):
    """A link in the place of a limit's file is a fault."""
    ref = plain.cgroup(LEASE)
    (plain.root / LEASE[1:] / "memory.max").symlink_to("/etc/hostname")
    with pytest.raises(OutsideFault, match="link"):
        apply(plain.tree, ref, Limits(memory_max=1))


@pytest.mark.cgroup2
def test_this_kernels_own_cgroups_are_read(tree: CgroupTree):
    """On the real tree a lease's cgroup loosens nothing of its own parent, whatever controllers exist."""
    ref = tree.create(7)
    own, above = effective_limits(tree, ref.path), effective_limits(tree, tree.instance)
    assert loosens(above, own) == ()
    assert apply(tree, ref, above) == ()
