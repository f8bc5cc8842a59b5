"""What a made-up site lets its users have."""

from __future__ import annotations

from nodeagent.domain.classes import Class
from nodeagent.domain.lease import HolderKind
from nodeagent.domain.quota import Limits, Quota, Subject, Use
from nodeagent.service.orders import Caller
from nodeagent.service.quota_rules import Allotment

GIB = 1 << 30


class FakePolicy:
    """One quota, of each user, and every class that is named."""

    def quotas(self, caller: Caller) -> tuple[Allotment, ...]:
        limits = Limits(leases=4, vram_bytes=48 * GIB)
        return (Allotment(Quota("each user", Subject(each=True), limits), Use(1, 4 * GIB, 64, 2)),)

    def class_of(self, caller: Caller, name: str | None, kind: HolderKind) -> Class:
        return Class(name or "")

    def classes(self, caller: Caller) -> tuple[Class, ...]:
        return (Class("notebook", default=True, limits=Limits(vram_bytes=8 * GIB)),)
