"""Builds the site's quotas: names become numbers here, once."""

from __future__ import annotations

from collections.abc import Callable

from nodeagent import config as settings
from nodeagent.domain.lease import HolderKind
from nodeagent.domain.quota import Limits, Quota, Subject
from nodeagent.domain.sizes import size_of
from nodeagent.domain.slurm import account_of
from nodeagent.service.quota_rules import QuotaRules
from nodeagent.wiring.policies import device_rules


def build_quota_rules(config: settings.Config, owner_of: Callable[[int], int]) -> QuotaRules:
    """The quotas, and who the databases list in the groups that these or reservations name."""
    quotas = [_quota(one) for one in config.quota]
    reserved = device_rules(config).reserved.values()
    groups = {one.subject.group for one in quotas}.union(*(one.gids for one in reserved)) - {None}
    return QuotaRules(quotas, owner_of, {gid: settings.members_of(gid) for gid in groups if gid is not None})


def _quota(told: settings.Quota) -> Quota:
    each = told.user == settings.EACH
    return Quota(
        told.name,
        Subject(
            user=None if told.user is None or each else settings.uid_of(str(told.user)),
            each=each,
            but=frozenset(uid for one in told.not_user if (uid := settings.uid_of(str(one))) is not None),
            group=None if told.group is None else settings.gid_of(str(told.group)),
            account=None if told.account is None else account_of(told.account),
            kind=None if told.kind is None else HolderKind(told.kind),
        ),
        Limits(
            leases=told.leases,
            vram_bytes=None if told.vram is None else size_of(str(told.vram)),
            cus=told.cus,
            queue_slots=told.queue_slots,
        ),
    )
