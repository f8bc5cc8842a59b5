"""Who was given a lease as a CDI device, and has it still when the lease ends.

Whoever keeps a command line of their own may leave out the lease's cgroup, and share the device's name. Such
a container holds the device nodes for as long as it runs: the slice is nobody else's before it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from nodeagent.domain.clock import Clock
from nodeagent.domain.guarantee import Hold
from nodeagent.service.effects import Arguments, Evidence, Pending, Planned, WaitInBoot
from nodeagent.service.means import Setting
from nodeagent.service.orders import Tier

CDI_USERS = "cdi_users"


class CdiUsersMeans:
    """Plans the wait, to be undone after those in the lease's cgroup are gone."""

    at_best = Hold()

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def tier(self) -> Tier:
        return Tier(CDI_USERS, True, "a CDI device's lease is over when its last container is gone")

    def promise(self, setting: Setting) -> Hold:
        return Hold()

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        if not setting.cdi:
            return []
        return [Planned(CDI_USERS, {"lease": lease_id, "boot_id": self._clock.boot_id})]


class CdiUsersEffect(WaitInBoot):
    """*end* goes on ending the containers that have a lease's note among their mounts."""

    rebooted: ClassVar[Evidence] = {"containers": "ended with their boot"}

    def __init__(self, clock: Clock, end: Callable[[int], Evidence | Pending]) -> None:
        super().__init__(clock)
        self._end = end

    def wait(self, arguments: Arguments) -> Evidence | Pending:
        return self._end(int(arguments["lease"]))
