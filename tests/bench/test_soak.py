"""What an agent uses does not grow with the leases that it has granted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.soak import Used, over, soak

WARM = Used(
    rss_mib=90,
    descriptors=25,
    threads=12,
    children=0,
    cgroups=0,
    hook_directories=0,
    database_mib=3,
    log_mib=1,
)


def test_what_grows_is_named() -> None:
    """Each thing that grew beyond its bound is told by name, and nothing else."""
    assert over(WARM, replace(WARM, rss_mib=100, descriptors=26, database_mib=5), 1000) == []
    for name, grown in (("rss_mib", 200), ("cgroups", 1), ("hook_directories", 1), ("database_mib", 200)):
        (told,) = over(WARM, replace(WARM, **{name: grown}), 1000)
        assert told.startswith(f"{name}: ")


@pytest.mark.timeout(300)
def test_some_hundred_leases_leave_nothing() -> None:
    """After some hundred leases, whole runs among them, an agent uses what it did when it was warm."""
    assert soak(200) == []
