"""Which cgroups are held at what, so that nothing is to be had outside leases."""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.domain.closure import Place, close

A, B = "drm/a/vram", "drm/b/vram"
NOTHING = {A: 0, B: 0}
TREE = (
    "/gpulease.slice/gpulease-1.slice",
    "/gpulease_0123abc.slice",
    "/init.scope",
    "/system.slice/cron.service",
    "/system.slice/x.service/gpulease-7.slice",
    "/system.slice/x.service/worker",
    "/user.slice/user-1000.slice/session-1.scope",
)
SLURM = (
    "/system.slice/slurmctld.service",
    "/system.slice/n1_slurmstepd.scope/job_41/step_0",
    "/system.slice/n1_slurmstepd.scope/job_42/step_0",
)


def children(tree: Sequence[str]):
    """The names below a cgroup of *tree*."""

    def names(path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        return sorted({one[len(prefix) :].split("/")[0] for one in tree if one.startswith(prefix)})

    return names


def closed(places=None, *, tree=TREE, whole=(), exempt=()):
    return close(children(tree), lambda path: path in whole, places or {}, [A, B], exempt)


def test_without_leases_outside_each_top_cgroup_gets_nothing() -> None:
    """Instances' subtrees, where leases have their own limits, are left alone."""
    closure = closed()
    assert closure.caps == {"/init.scope": NOTHING, "/system.slice": NOTHING, "/user.slice": NOTHING}
    assert closure.inner == ()


def test_a_nested_lease_is_let_through_and_all_beside_it_is_closed() -> None:
    """On the way down to it each sibling gets nothing, all together what it holds, and the lease its own."""
    closure = closed({"/system.slice/x.service/gpulease-7.slice": Place({A: 5}, limited=True)})
    assert closure.inner == ("/system.slice", "/system.slice/x.service")
    assert closure.caps == {
        "/init.scope": NOTHING,
        "/user.slice": NOTHING,
        "/system.slice": {A: 5, B: 0},
        "/system.slice/cron.service": NOTHING,
        "/system.slice/x.service": {A: 5, B: 0},
        "/system.slice/x.service/worker": NOTHING,
        "/system.slice/x.service/gpulease-7.slice": {B: 0},
    }


def test_a_lease_gets_nothing_of_what_it_was_not_granted() -> None:
    """Wherever it lies: else it were the one place from which every other GPU can be had."""
    own = "/gpulease.slice/gpulease-1.slice"
    closure = closed({own: Place({A: 5}, limited=True)})
    assert closure.caps[own] == {B: 0}
    assert closure.inner == ("/gpulease.slice",)
    assert own not in closed({own: Place({A: 5, B: 1}, limited=True)}).caps


def test_a_lease_nested_in_a_lease_is_let_through() -> None:
    """The outer one gets of the inner one's device what that holds, and of its own what it has."""
    outer, inner = "/gpulease.slice/gpulease-1.slice", "/gpulease.slice/gpulease-1.slice/gpulease-2.slice"
    closure = closed({outer: Place({A: 5}, limited=True), inner: Place({B: 3}, limited=True)})
    assert closure.caps[outer] == {B: 3}
    assert closure.caps[inner] == {A: 0}
    assert list(closure.caps).index(outer) < list(closure.caps).index(inner)


def test_a_job_that_runs_beside_its_lease_is_held_as_one() -> None:
    """What runs in the job shares what its leases hold, and no more."""
    closure = closed({"/system.slice/x.service": Place({A: 5}, limited=False)})
    assert closure.caps["/system.slice/x.service"] == {A: 5, B: 0}
    assert "/system.slice/x.service/worker" not in closure.caps


def test_a_cgroup_that_cannot_be_divided_is_held_at_the_sum_of_its_leases() -> None:
    """A user's own subtree, whose files the user could write, is never gone into."""
    places = {
        "/user.slice/user-1000.slice/session-1.scope": Place({A: 5}, limited=False),
        "/user.slice/user-1000.slice/session-2.scope": Place({A: 2, B: 1}, limited=False),
    }
    closure = closed(places, whole=("/user.slice/user-1000.slice",))
    assert closure.caps["/user.slice/user-1000.slice"] == {A: 7, B: 1}
    assert closure.inner == ("/user.slice",)


def test_slurms_parents_stay_open_and_each_job_gets_nothing() -> None:
    """Jobs are closed one by one: Slurm makes the next one in the same scope."""
    closure = closed(tree=SLURM)
    assert closure.inner == ("/system.slice", "/system.slice/n1_slurmstepd.scope")
    assert closure.caps == {
        "/system.slice/slurmctld.service": NOTHING,
        "/system.slice/n1_slurmstepd.scope/job_41": NOTHING,
        "/system.slice/n1_slurmstepd.scope/job_42": NOTHING,
    }


def test_a_job_with_a_lease_is_bounded_where_slurms_parents_are_not() -> None:
    """What appears in the job gets no more than its leases; Slurm's scope needs room for the next job."""
    places = {"/system.slice/n1_slurmstepd.scope/job_41/gpulease-7.slice": Place({A: 5}, limited=True)}
    closure = closed(places, tree=(*SLURM, "/system.slice/n1_slurmstepd.scope/job_41/gpulease-7.slice"))
    assert closure.caps["/system.slice/n1_slurmstepd.scope/job_41"] == {A: 5, B: 0}
    assert not {"/system.slice", "/system.slice/n1_slurmstepd.scope"} & closure.caps.keys()


def test_what_the_site_exempts_is_left_open_and_its_siblings_are_not() -> None:
    """A pattern's star is within one name."""
    closure = closed(exempt=["/system.slice/x.*"])
    assert "/system.slice/x.service" not in closure.caps
    assert closure.caps["/system.slice/cron.service"] == NOTHING
    assert closed(exempt=["/system.*/gone"]).caps["/system.slice"] == NOTHING


def test_a_look_alike_deeper_down_is_no_instance() -> None:
    """Only at the top, where root alone makes cgroups, does the name count."""
    tree = ("/user.slice/gpulease.slice/gpulease-1.slice", "/gpulease.slice.x/a")
    assert closed(tree=tree).caps == {"/gpulease.slice.x": NOTHING, "/user.slice": NOTHING}
