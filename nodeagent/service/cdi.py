"""A lease as a CDI device: whoever knows its name may start containers with it, until the lease ends.

Its name is the lease's ticket: nobody guesses one, and the ledger has its digest only (threat 18).
"""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.adapters.cdi_files import CdiFiles
from nodeagent.adapters.tickets import Tickets
from nodeagent.domain.cdi import edits
from nodeagent.domain.container import inside
from nodeagent.domain.environment import environment
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.guarantee import Hold, Ipc, Memory
from nodeagent.service.contained import CONTAINER
from nodeagent.service.effects import Arguments, Done, Evidence, Pending, Planned, evidence_of
from nodeagent.service.means import Setting, environment_of, mounts_of
from nodeagent.service.orders import Tier

CDI = "cdi"


class CdiDoor:
    """Plans the device where it is asked for. *files* None: turned off."""

    at_best = Hold()

    def __init__(self, files: CdiFiles | None) -> None:
        self._files = files

    def tier(self) -> Tier:
        why = self._unavailable()
        return Tier(CDI, why is None, why or "docker and podman are given a lease as a device, on demand")

    def promise(self, setting: Setting) -> Hold:
        return Hold()

    def closed(self, setting: Setting) -> str | None:
        if not setting.cdi:
            return None
        if why := self._unavailable():
            return f"{CDI}: {why}"
        if setting.demanded.memory is Memory.SUPERVISED or setting.demanded.ipc is Ipc.PRIVATE:
            return f"{CDI}: what is held so is started by the agent, and a container by its engine"
        return f"{CDI}: not of what runs already" if setting.adopted else None

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        if not setting.cdi or self.closed(setting):
            return []
        variables = environment(lease_id, setting.placed, setting.inventory)
        return [Planned(CDI, {"lease": lease_id, "environment": variables})]

    def _unavailable(self) -> str | None:
        return "turned off by cdi.enabled" if self._files is None else self._files.unavailable()


class CdiEffect:
    """The CDI file of one lease, of what the effects before it in the journal gave."""

    def __init__(self, files: CdiFiles, tickets: Tickets) -> None:
        self._files = files
        self._tickets = tickets

    def apply(self, arguments: Arguments) -> Evidence:
        return {}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        return {}

    def conclude(self, arguments: Arguments, before: Sequence[Done]) -> Evidence:
        lease, given = int(arguments["lease"]), evidence_of(before, CONTAINER)
        if given is None:
            raise OutsideFault(CDI, f"lease {lease} has nothing that a container could be given")
        variables = inside({**arguments["environment"], **environment_of(before)})
        said = edits(given["devices"], mounts_of(before), variables)
        self._files.write(lease, self._tickets.of(lease), said)
        return {"sha256": self._tickets.digest(lease)}

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        self._files.remove(int(arguments["lease"]))
        return {"revoked": True}
