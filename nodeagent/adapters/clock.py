"""The kernel's clocks."""

from __future__ import annotations

import time
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SystemClock:
    """`nodeagent.domain.clock.Clock` on this kernel. The boot id is read once: it cannot change under us."""

    def __init__(self, boot_id: Path = BOOT_ID) -> None:
        self._boot_id = boot_id.read_text(encoding="ascii").strip()

    @property
    def boot_id(self) -> str:
        """The kernel's random id of this boot."""
        return self._boot_id

    def boot_ns(self) -> int:
        """CLOCK_BOOTTIME in nanoseconds: counts suspend, never jumps."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        """Seconds since the epoch, for display only."""
        return time.time()
