"""A lease as a CDI device: whoever knows its name may start containers with it, until the lease ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nodeagent.adapters.cdi_files import CdiFiles
from nodeagent.domain.guarantee import Hold, Ipc, Memory
from nodeagent.domain.offer import Offer
from nodeagent.service.effects import Arguments, Evidence, Pending, Planned
from nodeagent.service.means import Setting
from nodeagent.service.orders import Tier

CDI = "cdi"


class CdiDoor:
    """Plans the device where it is asked for. *files* None: turned off."""

    at_best = Hold()

    def __init__(self, files: CdiFiles | None, offer: Callable[[int, Setting], Offer]) -> None:
        self._files = files
        self._offer = offer

    def tier(self) -> Tier:
        why = self._unavailable()
        return Tier(CDI, why is None, why or "docker and podman are given a lease as a device, on demand")

    def promise(self, setting: Setting) -> Hold:
        return Hold()

    def closed(self, setting: Setting) -> str | None:
        if not setting.cdi:
            return None
        if why := self._unavailable():
            return f"cdi: {why}"
        if setting.demanded.memory is Memory.SUPERVISED or setting.demanded.ipc is Ipc.PRIVATE:
            return "cdi: the engine starts containers, and not the agent, which alone starts what is held so"
        return "cdi: not of what runs already" if setting.adopted else None

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        if not setting.cdi or self.closed(setting):
            return []
        return [Planned(CDI, {"lease": lease_id, "offer": self._offer(lease_id, setting).to_json()})]

    def _unavailable(self) -> str | None:
        return "turned off by cdi.enabled" if self._files is None else self._files.unavailable()


class CdiEffect:
    """The CDI file of one lease. The journal has the digest of the device's name, and never the name."""

    def __init__(self, files: CdiFiles) -> None:
        self._files = files

    def apply(self, arguments: Arguments) -> Evidence:
        return {"sha256": self._files.write(int(arguments["lease"]), Offer.from_json(arguments["offer"]))}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        self._files.verify(
            int(arguments["lease"]), Offer.from_json(arguments["offer"]), str(evidence["sha256"])
        )
        return {}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        self._files.remove(int(arguments["lease"]))
        return {"revoked": True}
