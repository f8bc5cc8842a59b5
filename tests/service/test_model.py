"""Any sequence of grants, releases, attaches, expiries, crashes and reboots, against plain sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from service_model import ServiceMachine


def test_no_sequence_of_acts_breaks_the_service(migrated: Path, materialised: Callable[[str], Path]) -> None:
    """After any sequence of grants, releases, expiries, crashes and reboots ledger and world equal sets."""
    machine = type("Machine", (ServiceMachine,), {"migrated": migrated, "root": materialised("vega10")})
    thorough = settings().max_examples > 100
    run_state_machine_as_test(
        machine,
        settings=settings() if thorough else settings(max_examples=15, stateful_step_count=20),
    )
