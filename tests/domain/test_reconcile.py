"""The plan: which action each difference between node and ledger calls for, and which it does not."""

from __future__ import annotations

import pytest

from nodeagent.domain.reconcile import Action, SeenCgroup, SeenSidecar, Snapshot, plan

EMPTY = SeenCgroup("/gpulease.slice/gpulease-7.slice", 70, populated=False)
POPULATED = SeenCgroup("/gpulease.slice/gpulease-7.slice", 70, populated=True)
SEVEN = frozenset({7})


@pytest.mark.parametrize(
    ("seen", "actions"),
    [
        (Snapshot(), ()),
        (Snapshot(known=SEVEN), ()),
        (Snapshot(cgroups={7: EMPTY}), (Action.REMOVE_CGROUP,)),
        (Snapshot(cgroups={7: POPULATED}), (Action.REPORT_CGROUP,)),
        (Snapshot(filed=SEVEN), (Action.REMOVE_FILES,)),
        (Snapshot(units=SEVEN), (Action.STOP_UNIT,)),
        (Snapshot(cgroups={7: EMPTY}, units=SEVEN), (Action.STOP_UNIT, Action.REMOVE_CGROUP)),
        (Snapshot(cgroups={7: POPULATED}, units=SEVEN, filed=SEVEN), (Action.REPORT_CGROUP,)),
        (Snapshot(known=SEVEN, cgroups={7: EMPTY}, units=SEVEN, filed=SEVEN), ()),
        (Snapshot(known=SEVEN, cgroups={7: POPULATED}), ()),
        (Snapshot(known=SEVEN, frozen={7: POPULATED.path}), (Action.THAW_CGROUP,)),
    ],
    ids=[
        "nothing",
        "a lease alone",
        "an empty cgroup of none",
        "a populated cgroup of none",
        "hook files of none",
        "a unit of none",
        "a unit with its cgroup",
        "all of none, under a process",
        "all of a lease",
        "a lease in use",
        "a live lease that stands still",
    ],
)
def test_each_difference_has_its_action(seen: Snapshot, actions: tuple[Action, ...]) -> None:
    """Nothing is done to what a lease has, and nothing under a living process."""
    assert tuple(step.action for step in plan(seen)) == actions


def test_only_what_may_be_in_use_stops_grants() -> None:
    """Somebody in a cgroup of no lease does; what is left without anybody does not."""
    stops = {step.lease: step.stops_grants for step in plan(Snapshot(cgroups={7: POPULATED, 8: EMPTY}))}
    assert stops == {7: True, 8: False}


def test_actions_come_in_their_order_then_by_lease() -> None:
    """Units of all leases are stopped before the first cgroup is removed."""
    seen = Snapshot(cgroups={8: EMPTY, 7: EMPTY}, units=frozenset({8}), filed=frozenset({7}))
    assert [(step.action, step.lease) for step in plan(seen)] == [
        (Action.STOP_UNIT, 8),
        (Action.REMOVE_CGROUP, 7),
        (Action.REMOVE_CGROUP, 8),
        (Action.REMOVE_FILES, 7),
    ]


def test_each_step_says_what_differs() -> None:
    """The path of a cgroup, the lease of the rest."""
    seen = Snapshot(cgroups={7: EMPTY}, units=SEVEN, filed=SEVEN)
    assert all(EMPTY.path in step.why or "lease 7" in step.why for step in plan(seen))


def forgotten(**seen: object) -> Snapshot:
    """A sidecar of lease 7 that the ledger never had, with an empty cgroup and files of the hook."""
    sidecar = SeenSidecar("/run/7.json", **seen)
    return Snapshot(sidecars=SEVEN, forgotten={7: sidecar}, cgroups={7: EMPTY}, filed=SEVEN)


REMOVED = (Action.REMOVE_SIDECAR, Action.REMOVE_CGROUP, Action.REMOVE_FILES)


@pytest.mark.parametrize(
    ("seen", "actions"),
    [
        (Snapshot(known=SEVEN, wanted=SEVEN, sidecars=SEVEN), ()),
        (Snapshot(known=SEVEN, wanted=SEVEN, outdated=SEVEN), (Action.WRITE_SIDECAR,)),
        (Snapshot(known=SEVEN, wanted=SEVEN, outdated=SEVEN, sidecars=SEVEN), (Action.WRITE_SIDECAR,)),
        (Snapshot(known=SEVEN, sidecars=SEVEN), (Action.REMOVE_SIDECAR,)),
        (Snapshot(sidecars=SEVEN), (Action.REMOVE_SIDECAR,)),
        (forgotten(), (Action.REBUILD_LEASE,)),
        (forgotten(in_use=True, refused="held"), (Action.REBUILD_LEASE,)),
        (forgotten(refused="held"), REMOVED),
        (forgotten(this_boot=False), REMOVED),
        (forgotten(there=False), REMOVED),
        (forgotten(broken="no JSON"), (Action.REPORT_SIDECAR, *REMOVED[1:])),
    ],
    ids=[
        "as it should be",
        "missing",
        "of before",
        "of a lease that holds nothing",
        "of a lease that ended",
        "of a lease that the ledger lost",
        "refused and in use",
        "refused and not in use",
        "of another boot",
        "of a cgroup that is gone",
        "broken",
    ],
)
def test_each_sidecar_has_its_action(seen: Snapshot, actions: tuple[Action, ...]) -> None:
    """A lost lease is put back with all that it has; what is none goes with all that it left."""
    assert tuple(step.action for step in plan(seen)) == actions


def test_a_lease_not_yet_put_back_stops_grants() -> None:
    """What it holds looks free until then."""
    assert [step.stops_grants for step in plan(forgotten())] == [True]
    assert not any(step.stops_grants for step in plan(forgotten(there=False)))
