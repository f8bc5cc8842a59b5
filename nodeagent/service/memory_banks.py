"""Shrunken memory banks for a lease's containers: ROCm itself keeps to the slice, with no library loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodeagent.adapters.bank_files import BankFiles
from nodeagent.adapters.hook_format import shown_bytes
from nodeagent.domain.guarantee import Hold
from nodeagent.domain.memory_banks import banks_path
from nodeagent.service.effects import Arguments, Evidence, Pending, Planned
from nodeagent.service.means import Setting
from nodeagent.service.orders import Tier

BANKS = "banks"


class BanksMeans:
    """Plans the copies for leases that containers are given. *off*: why there are none here."""

    at_best = Hold()

    def __init__(self, off: str | None) -> None:
        self._off = off

    def tier(self) -> Tier:
        there = "ROCm in a lease's containers takes a GPU to be as large as the slice"
        return Tier(BANKS, self._off is None, self._off or there)

    def promise(self, setting: Setting) -> Hold:
        return Hold()

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        if self._off or setting.container is None:
            return []
        found = [(one, setting.inventory.device(one.device)) for one in setting.placed]
        shown = {str(device.kfd_node): shown_bytes(one.vram_bytes) for one, device in found if device}
        return [Planned(BANKS, {"lease": lease_id, "shown": shown})]  # JSON has no other keys than text


class BanksEffect:
    """The copies of one lease, which are mounted over the kernel's."""

    def __init__(self, files: BankFiles) -> None:
        self._files = files

    def apply(self, arguments: Arguments) -> Evidence:
        self._files.prepare(int(arguments["lease"]), _by_node(arguments))
        return {}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        lease, shown = int(arguments["lease"]), _by_node(arguments)
        self._files.verify(lease, shown)
        paths = {banks_path(node): str(self._files.path(lease, node)) for node in shown}
        return {
            "mounts": [
                {"source": path, "target": target, "read_only": True} for target, path in paths.items()
            ]
        }

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        self._files.remove(int(arguments["lease"]))
        return {"removed": True}


def _by_node(arguments: Arguments) -> Mapping[int, int]:
    return {int(node): int(shown) for node, shown in arguments["shown"].items()}
