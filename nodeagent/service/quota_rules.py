"""The site's quotas, kept: for whom a lease counts, and whether one more would be too much."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from nodeagent.domain.lease import HolderKind, Lease
from nodeagent.domain.quota import Breach, Held, Holding, Payer, Quota, Use, breach, use_of
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.ledger.queries import Queries
from nodeagent.service.members import Members
from nodeagent.service.orders import Caller, Order
from nodeagent.service.placing import Placed

ROOT = 0  # is held by no quota, and counts for none


@dataclass(frozen=True, slots=True)
class Allotment:
    """A quota that applies to somebody, and what counts towards it now."""

    quota: Quota
    used: Use


class QuotaRules:
    """All quotas of the site; without any nothing is asked of the ledger."""

    def __init__(
        self,
        quotas: Sequence[Quota] = (),
        owner_of: Callable[[int], int] = lambda uid: uid,
        listed: Mapping[int, Collection[int]] | None = None,
    ) -> None:
        self._quotas = tuple(quotas)
        self._owner_of = owner_of
        self.members = Members(listed or {})

    def payer(self, caller: Caller, order: Order) -> Payer | None:
        """For whom a lease that *caller* orders counts; None where no quota holds it.

        A job's for its user, whoever asks; an administrator's own is held by none. Its groups are those that
        `members` knows by then.
        """
        if not self._quotas or (caller.administrator and order.behalf is None):
            return None
        if order.behalf is not None:
            return self.holder(order.behalf.uid, order.behalf.gid, order.holder_kind, order.behalf.account)
        return self.holder(caller.uid, caller.gid, order.holder_kind)

    def holder(self, uid: int, gid: int | None, kind: HolderKind, account: str | None = None) -> Payer | None:
        """For whom the lease of a holder counts; None where no quota can apply."""
        if not self._quotas or uid == ROOT:
            return None
        owner = self._owner_of(uid)
        return Payer(owner, self.members.of(owner, gid), kind, account)

    def waiting(self, ledger: Queries, lease: Lease) -> Payer | None:
        """The same of a lease that waits."""
        if not self._quotas:
            return None
        account = ledger.account(lease.id) if lease.holder.kind is HolderKind.SLURM else None
        return self.holder(lease.holder.uid, lease.gid, lease.holder.kind, account)

    def breach(self, ledger: Queries, payer: Payer | None, placed: Placed) -> Breach | None:
        """What of a quota *payer* would exceed if it were given *placed* now."""
        if payer is None or not any(quota.subject.covers(payer) for quota in self._quotas):
            return None
        return breach(self._quotas, payer, use_of(placed), self._held(ledger))

    def allotments(self, ledger: Queries, caller: Caller) -> tuple[Allotment, ...]:
        """The quotas that hold for *caller*: of each holder kind, and of the accounts of its own jobs."""
        if not self._quotas or caller.administrator or caller.anonymous:
            return ()
        owner = self._owner_of(caller.uid)
        self.members.note(owner, {caller.gid, *caller.groups})
        groups, held = self.members.of(owner, caller.gid), self._held(ledger)
        accounts = {one.payer.account for one in held if one.payer.uid == owner}
        found = []
        for quota in self._quotas:
            kind, account = quota.subject.kind or HolderKind.CLIENT, quota.subject.account
            payer = Payer(owner, groups, kind, account if account in accounts else None)
            if quota.subject.covers(payer):
                found.append(Allotment(quota, quota.used(payer, held)))
        return tuple(found)

    def _held(self, ledger: Queries) -> tuple[Held, ...]:
        found = ((one, self._payer_of(one)) for one in ledger.holdings())
        return tuple(Held(one.lease, payer, one.use) for one, payer in found if payer is not None)

    def _payer_of(self, one: Holding) -> Payer | None:
        return self.holder(one.uid, one.gid, one.kind, one.account)


def refused(over: Breach) -> Refusal:
    """The refusal of what would be *over* a quota."""
    act = "ask for less" if over.never else "release a lease that counts with it, or ask with --wait"
    return Refusal(
        Code.QUOTA_NOT_FIT,
        over.why,
        f"{act}; `gpulease quota` shows yours",
        leases=() if over.never else over.leases,
    )
