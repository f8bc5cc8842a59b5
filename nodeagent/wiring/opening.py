"""Builds what opens the node, and reads the ledger, without an agent."""

from __future__ import annotations

from pathlib import Path

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.adapters.clock import SystemClock
from nodeagent.adapters.closure import OutsideCgroups
from nodeagent.adapters.dmem import DmemController
from nodeagent.adapters.gate_record import GateRecord
from nodeagent.ledger.reader import LedgerReader
from nodeagent.service.opening import Opening
from nodeagent.wiring.state import LEDGER, instance


def build_opening(state: Path) -> Opening:
    """Over what the agent of the directory *state* closed."""
    clock, mount = SystemClock(), find_mount()
    tree = CgroupTree(mount, instance(state)) if mount is not None else None
    dmem = DmemController(tree) if tree is not None else None
    if dmem is not None and dmem.unavailable() is not None:
        dmem = None
    outside = OutsideCgroups(tree, dmem, state, clock.boot_id) if tree and dmem else None
    return Opening(tree, dmem, outside, GateRecord(state, clock.boot_id), LedgerReader(state / LEDGER, clock))
