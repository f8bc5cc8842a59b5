"""The idle baseline: what a pool uses when nobody works on it is never granted."""

from __future__ import annotations

from typing import Any

from nodeagent.adapters.scanner import Scanner

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
