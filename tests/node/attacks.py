"""Attack leases from inside, by each path of their node, and compare with what they state."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

PROGRAM = Path(__file__).with_name("attack.py")
TIERS = ("kernel", "supervised", "hook", "advisory")
# The weakest tier that has to refuse each path.
REFUSED_BY = {
    "kfd by the library": "hook",
    "kfd by an odd request": "hook",
    "kfd by an orphan": "hook",
    "gem by the library": "hook",
    "kfd by a system call": "supervised",
    "kfd without the environment": "supervised",
    "gem by a system call": "supervised",
    "the rig's driver": "kernel",
    "the rig's driver from another cgroup": "kernel",
}
Outcomes = Mapping[str, Mapping[str, str]]  # by device, then by path


class Attacks:
    """The attack program, in reach of every user, and what came of it, by lease."""

    def __init__(self, client: Path) -> None:
        self.dev = Path("/dev")  # where the node's devices are
        self.program = client / PROGRAM.name
        shutil.copy(PROGRAM, self.program)
        self.records = client / "attacks"
        self.records.mkdir(exist_ok=True)
        self.records.chmod(0o1777)

    def command(self, interpreter: str, *then: str) -> list[str]:
        """What attacks the lease that it is run in, and becomes *then*."""
        attack = [interpreter, str(self.program), str(self.dev), str(self.records)]
        return [*attack, "--", *then] if then else attack

    def outcomes(self, lease: int) -> Outcomes | None:
        """What came of the attack on *lease*; None where there was none."""
        record = self.records / f"{lease}.json"
        return json.loads(record.read_text()) if record.exists() else None


def weaker_than_stated(memory: str, outcomes: Outcomes) -> list[str]:
    """The paths that got VRAM although the lease's guarantee says that they do not."""
    stated = TIERS.index(memory)
    return [
        f"{device} {path}: {outcome}"
        for device, paths in outcomes.items()
        for path, outcome in paths.items()
        if stated <= TIERS.index(REFUSED_BY[path])
        and outcome != "refused"
        and not outcome.startswith("no way in")
    ]
