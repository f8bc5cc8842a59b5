"""The idle baseline: what a pool uses when nobody works on it is never granted."""

from __future__ import annotations

from typing import Any

from nodeagent.adapters.scanner import Scanner

PCI = "0000:01:00.0"
USED = f"sys/bus/pci/devices/{PCI}/mem_info_vram_used"
VRAM = 64 << 30
NOBODY: frozenset[str] = frozenset()


def grantable(scanner: Scanner, busy: frozenset[str]) -> int:
    (pool,) = scanner.scan(busy).pools
    return pool.grantable_bytes


def test_a_busy_pool_keeps_the_baseline_of_its_idle_time(made_up: Any) -> None:
    """A tenant's own memory does not shrink what may be granted; an idle scan takes the baseline anew."""
    made_up.card(1)
    made_up.drm(128, PCI, mem_info_vram_used=16 << 20)
    scanner = Scanner(made_up.tree(), reserve_percent=0, include_apus=False)
    assert grantable(scanner, NOBODY) == VRAM - (16 << 20)
    made_up.file(USED, f"{40 << 30}\n")
    assert grantable(scanner, frozenset({PCI})) == VRAM - (16 << 20)
    made_up.file(USED, f"{32 << 20}\n")
    assert grantable(scanner, NOBODY) == VRAM - (32 << 20)


def test_a_pool_never_seen_idle_counts_as_idle_at_nothing(made_up: Any) -> None:
    """What is in use at the first scan may be a lease's own, from before a restart."""
    made_up.card(1)
    made_up.drm(128, PCI, mem_info_vram_used=40 << 30)
    scanner = Scanner(made_up.tree(), reserve_percent=0, include_apus=False)
    assert grantable(scanner, frozenset({PCI})) == VRAM


def test_an_unreadable_counter_keeps_the_last_baseline(made_up: Any) -> None:
    """A counter that fails for once does not make the idle bytes grantable."""
    made_up.card(1)
    made_up.drm(128, PCI, mem_info_vram_used=16 << 20)
    scanner = Scanner(made_up.tree(), reserve_percent=0, include_apus=False)
    assert grantable(scanner, NOBODY) == VRAM - (16 << 20)
    made_up.file(USED, "\n")
    assert grantable(scanner, NOBODY) == VRAM - (16 << 20)


def test_what_foreign_users_hold_is_no_baseline(made_up: Any) -> None:
    """It is taken off where they are counted, once, and so comes back when they end."""
    made_up.card(1)
    made_up.drm(128, PCI, mem_info_vram_used=(2 << 30) + (16 << 20))
    held = {PCI: 2 << 30}
    scanner = Scanner(made_up.tree(), reserve_percent=0, include_apus=False, foreign=held.__getitem__)
    assert grantable(scanner, NOBODY) == VRAM - (16 << 20)
    held[PCI] = 3 << 30  # allocated since: never less than nothing
    assert grantable(scanner, NOBODY) == VRAM
