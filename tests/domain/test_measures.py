"""Histograms, and who uses what of a device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nodeagent.domain.device import Inventory
from nodeagent.domain.histogram import SECONDS, Buckets
from nodeagent.domain.measures import Use, use_of
from nodeagent.domain.watch import KfdUse, Sample
from nodeagent.service.histogram import Histogram


def test_a_histogram_counts_up_to_each_bound() -> None:
    """Each bucket holds those below it, the last one all; a value on a bound is within it."""
    found = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        found.observe(seconds)
    assert found.buckets() == Buckets((0.1, 1.0), (2, 3, 4), 7.65)


def test_an_empty_histogram_is_all_zeros() -> None:
    """What was never observed has its buckets, so that a rate over them is 0 and not unknown."""
    assert Histogram().buckets() == Buckets() == Buckets(SECONDS, (0,) * (len(SECONDS) + 1), 0.0)


def test_use_is_summed_by_owner_and_device(machines: Any) -> None:
    """Queues, busy CUs and evictions of all processes of a lease add up; an ended process is left out."""
    inventory: Inventory = machines.node("mi300x-spx")
    devices = (replace(inventory.devices[0], gpu_id=7), *inventory.devices[1:])
    sample = Sample(
        (
            KfdUse(10, 7, queues=("a", "b"), cu_occupancy=12, evicted_ms=100),
            KfdUse(11, 7, queues=("a",), cu_occupancy=4, evicted_ms=20),
            KfdUse(12, 7, queues=("a",)),
            KfdUse(13, 7, queues=("a",), cu_occupancy=99),
            KfdUse(10, 12345, queues=("a",)),
        ),
        (),
        {10: 1, 11: 1, 12: None},
    )
    key = devices[0].key
    found = use_of(sample, {1: {key: 500}, None: {}}, replace(inventory, devices=devices))
    assert found == {(1, key): Use(500, 3, 16, 120), (None, key): Use(0, 1, None, 0)}
