"""What the fake agent says of leases beside the ledger's word: as the test has set it."""

from __future__ import annotations

from nodeagent.domain.idle import Idle
from nodeagent.domain.lease import Lease
from nodeagent.service.effects import Told
from nodeagent.service.queue import Standing


class FakeViews:
    """By the lease's number; what programs tell is the same for all."""

    says: Told | None
    standings: dict[int, Standing]
    resting: dict[int, Idle]

    def standing(self, lease: Lease) -> Standing | None:
        return self.standings.get(lease.id)

    def idle(self, lease: Lease) -> Idle | None:
        return self.resting.get(lease.id)

    def told(self, lease: Lease) -> Told | None:
        return self.says
