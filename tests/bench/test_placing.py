"""The figures of docs/placement.md are what the code gives, and the shapes are worth what is said of them."""

from __future__ import annotations

import pytest

from tests.bench.placing import delivery, sharing
from tests.bench.placing.churn import capped, churn, deliver, rules
from tests.bench.placing.nodes import inventory
from tests.bench.placing.report import read

AGAIN = "another figure than the committed one: run `make bench-placement`, and look at what it changes"


@pytest.mark.parametrize("machine", ["mi300x-spx", "vega10", "rx7900xtx"])
def test_the_shapes_deliver_more_than_the_lowest_free_bits(machine: str) -> None:
    """Under churn both shapes work like no fewer CUs than HAMi's rule, and leave no XCC without a CU."""
    device = inventory(machine).devices[0]
    found = {name: deliver(device.geometry, rule, churn(2, 150, 3)) for name, rule in rules(device).items()}
    for shape in ("even", "exact"):
        assert found[shape].effective >= found["lowest free"].effective
        assert found[shape].stuck == 0


def test_who_is_over_the_cap_never_comes() -> None:
    """With the cap the percents of those who are there never come to more than 100."""
    live: dict[int, int] = {}
    for event in capped(churn(4, 300, 1)):
        if event.percent:
            live[event.lease] = event.percent
        else:
            del live[event.lease]
        assert sum(live.values()) <= 100


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "cap", "demand"), [("mi300x-spx", True, 4), ("mi300x-cpx", False, 16)])
def test_delivered_cus_are_as_committed(machine: str, cap: bool, demand: int) -> None:
    """Each rule's figures are those of the committed report."""
    (committed,) = (
        row
        for row in read()["delivered"]
        if machine in row["machines"] and (row["capped"], row["demand"]) == (cap, demand)
    )
    device = inventory(machine).devices[0]
    assert delivery.figures(device, cap, demand) == committed["rules"], AGAIN


@pytest.mark.slow
@pytest.mark.parametrize("name", sharing.NAMES)
def test_what_the_trace_comes_to_is_as_committed(name: str) -> None:
    """Small leases over hours leave as many linked GPUs to be found as the committed report says."""
    scenario = sharing.Scenario("two groups, interleaved", "parts of GPUs", 2)
    found = sharing.row(scenario, name)
    assert found in read()["shared"], f"{AGAIN}: {found}"
