"""The clocks that leases live by."""

from __future__ import annotations

import time
from pathlib import Path

from nodeagent.adapters.clock import SystemClock


def test_boot_id_is_the_files_without_its_newline(tmp_path: Path):
    """The boot id is what the kernel's file says, as one word."""
    file = tmp_path / "boot_id"
    file.write_text("0c3b9c5e-0000-4000-8000-000000000001\n")
    assert SystemClock(file).boot_id == "0c3b9c5e-0000-4000-8000-000000000001"


def test_this_kernel_has_a_boot_id():
    """Two clocks of one boot agree on it."""
    assert SystemClock().boot_id == SystemClock().boot_id != ""


def test_boot_time_counts_suspend_and_never_goes_back():
    """Boot time is CLOCK_BOOTTIME: it lies between two reads of that clock."""
    clock = SystemClock()
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    now = clock.boot_ns()
    assert before <= now <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def test_wall_time_is_seconds_since_the_epoch():
    """The wall clock is there for display."""
    before = time.time()
    assert before <= SystemClock().wall() <= time.time()
