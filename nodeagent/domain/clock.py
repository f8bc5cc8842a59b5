"""The time that leases live by: boot time, which no clock jump moves, and the boot that it counts from."""

from __future__ import annotations

from typing import Protocol

SECOND_NS = 1_000_000_000


class Clock(Protocol):
    """Injected wherever time matters, so that tests can turn it."""

    @property
    def boot_id(self) -> str:
        """The kernel's random id of this boot."""

    def boot_ns(self) -> int:
        """CLOCK_BOOTTIME in nanoseconds: counts suspend, never jumps."""

    def wall(self) -> float:
        """Seconds since the epoch, for display only."""
