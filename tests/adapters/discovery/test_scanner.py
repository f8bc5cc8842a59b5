"""Scans: an idle pool's use is never granted, and devices keep the keys that they had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from nodeagent.adapters.scanner import Scanner, named

NODES = "sys/class/kfd/kfd/topology/nodes"
PCI = "0000:01:00.0"
VRAM = 64 << 30


def test_what_an_idle_pool_uses_is_not_granted(made_up: Any) -> None:
    """The baseline as it is known at each scan, whatever the card uses now."""
    made_up.card(1)
    made_up.drm(128, PCI, mem_info_vram_used=40 << 30)
    known = {PCI: 16 << 20}
    scanner = Scanner(made_up.tree(), reserve_percent=0, include_apus=False, idle=known.get)
    (pool,) = scanner.scan().pools
    assert pool.grantable_bytes == VRAM - (16 << 20)
    known[PCI] = 32 << 20
    (pool,) = scanner.scan().pools
    assert pool.grantable_bytes == VRAM - (32 << 20)


def test_a_pool_never_seen_idle_counts_as_idle_at_nothing(made_up: Any) -> None:
    """What is in use then may be a lease's own, from before a restart."""
    made_up.card(1)
    made_up.drm(128, PCI, mem_info_vram_used=40 << 30)
    (pool,) = Scanner(made_up.tree(), reserve_percent=0, include_apus=False).scan().pools
    assert pool.grantable_bytes == VRAM


class Memory(dict[str, str]):
    """What is kept for the next scanner."""

    def read(self) -> dict[str, str]:
        return dict(self)

    def keep(self, entries: Mapping[str, str]) -> None:
        self.update(entries)


def keys(scanner: Scanner) -> dict[str | None, str]:
    """Key by render node."""
    return {one.render_node: one.key for one in scanner.scan().devices}


def scanner_of(made_up: Any, memory: Memory) -> Scanner:
    return Scanner(made_up.tree(), reserve_percent=0, include_apus=False, names=memory)


TWINS = {"renderD128": "renderD128/0", "renderD129": "renderD129/0"}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_device_keeps_its_key_when_its_twin_vanishes(made_up: Any, restarted: bool) -> None:
    """Two cards of one location go by their render nodes; the one left does so too, and who returns."""
    made_up.card(1, location_id=6400)
    made_up.card(2, location_id=6400)
    memory = Memory()
    scanner = scanner_of(made_up, memory)
    assert keys(scanner) == TWINS
    node, aside = made_up.root / NODES / "1", made_up.root / "aside"
    node.rename(aside)
    if restarted:
        scanner = scanner_of(made_up, memory)
    assert keys(scanner) == {"renderD129": "renderD129/0"}
    aside.rename(node)
    assert keys(scanner) == TWINS


def test_a_second_card_does_not_rename_the_first(made_up: Any) -> None:
    """The first goes by its address, which it then shares: the new one goes by its render node."""
    made_up.card(1, location_id=6400)
    scanner = scanner_of(made_up, Memory())
    assert keys(scanner) == {"renderD128": "0000:19:00.0/0"}
    made_up.card(2, location_id=6400)
    assert keys(scanner) == {"renderD128": "0000:19:00.0/0", "renderD129": "renderD129/0"}


def test_another_card_in_its_place_has_a_key_of_its_own(made_up: Any) -> None:
    """What is not recognisably the same gets no key of before, and takes nobody's when that comes back."""
    made_up.card(1, location_id=6400)
    scanner = scanner_of(made_up, Memory())
    scanner.scan()
    made_up.card(1, location_id=6400, unique_id=77)
    assert keys(scanner) == {"renderD128": "0000:19:00.0/0"}
    made_up.card(2, location_id=6400, unique_id=1001, drm_render_minor=128)
    made_up.file(f"{NODES}/2/gpu_id", "101\n")
    assert len({one.key for one in scanner.scan().devices}) == 2


def test_two_that_are_alike_in_all_are_not_recognised(made_up: Any) -> None:
    """Nothing tells them apart, so nothing is remembered of either."""
    for number in (1, 2):
        made_up.card(number, location_id=6400, unique_id=5, drm_render_minor=128)
        made_up.file(f"{NODES}/{number}/gpu_id", "101\n")
    memory = Memory()
    assert len(scanner_of(made_up, memory).scan().devices) == 2
    assert memory == {}


def test_a_kept_name_must_be_a_key() -> None:
    """A file that somebody edited names nothing."""
    assert named("0000:19:00.0/0") == "0000:19:00.0/0"
    for told in (7, "", "0000:19:00.0", "x/y"):
        with pytest.raises(ValueError, match="no device's key"):
            named(told)
