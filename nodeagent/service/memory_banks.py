"""Shrunken memory banks for a lease's containers: ROCm itself keeps to the slice, with no library loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.adapters.bank_files import BankFiles
from nodeagent.adapters.hook_format import shown_bytes
from nodeagent.domain.guarantee import Hold
from nodeagent.domain.memory_banks import banks_path
from nodeagent.domain.offer import BindMount
from nodeagent.service.effects import Arguments, Evidence, Pending, Planned
from nodeagent.service.means import Setting
from nodeagent.service.orders import Tier

BANKS = "banks"


class BanksMeans:
    """Prepares the copies for leases that containers are given. *files* None: *off* says why."""

    at_best = Hold()

    def __init__(self, files: BankFiles | None, off: str) -> None:
        self._files = files
        self._off = off

    def tier(self) -> Tier:
        there = "ROCm in a lease's containers takes a GPU to be as large as the slice"
        return Tier(BANKS, self._files is not None, self._off if self._files is None else there)

    def promise(self, setting: Setting) -> Hold:
        return Hold()

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        shown = self._shown(setting)
        return [Planned(BANKS, {"lease": lease_id, "shown": shown})] if shown else []

    def mounts(self, lease_id: int, setting: Setting) -> Sequence[BindMount]:
        """What is mounted over the banks of such a lease's devices."""
        if self._files is None:
            return []
        nodes = map(int, self._shown(setting))
        return [BindMount(str(self._files.path(lease_id, node)), banks_path(node)) for node in nodes]

    def _shown(self, setting: Setting) -> Mapping[str, int]:
        """Bytes by topology node; JSON has no other keys than text."""
        if self._files is None or not setting.cdi:
            return {}
        found = {one: setting.inventory.device(one.device) for one in setting.placed}
        return {str(device.kfd_node): shown_bytes(one.vram_bytes) for one, device in found.items() if device}


class BanksEffect:
    """The copies of one lease."""

    def __init__(self, files: BankFiles) -> None:
        self._files = files

    def apply(self, arguments: Arguments) -> Evidence:
        self._files.prepare(int(arguments["lease"]), _by_node(arguments))
        return {}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        self._files.verify(int(arguments["lease"]), _by_node(arguments))
        return {}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        self._files.remove(int(arguments["lease"]))
        return {"removed": True}


def _by_node(arguments: Mapping[str, Any]) -> dict[int, int]:
    return {int(node): int(shown) for node, shown in arguments["shown"].items()}
