"""Checks for objects of ours that no lease needs: what a crash, a restore or a removed version left."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from nodeagent.domain.doctor.check import Verdict, check, either, unseen, warn

AREA = "leftovers"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Leases by what there is of them. *live*: those that may have something; None: not known."""

    live: frozenset[int] | None
    cgroups: frozenset[int] = frozenset()
    hook: frozenset[int] = frozenset()
    banks: frozenset[int] = frozenset()
    cdi: frozenset[int] = frozenset()
    sidecars: frozenset[int] = frozenset()
    acl_uids: frozenset[int] = frozenset()  # with an entry of their own on a GPU's node
    lease_uids: frozenset[int] = frozenset()  # of the live leases
    gate: bool = False  # devices.gate
    exempt_uids: frozenset[int] = frozenset()
    mounts: tuple[str, ...] = ()  # below the hook's directory
    instances: tuple[str, ...] = ()  # other agents' subtrees
    why_unknown: str = "the ledger cannot be read: only root may"


_BY_ITSELF = "start the agent: it removes what is no lease's at its start, and says what it cannot"


@check(Leftovers, AREA, fix=_BY_ITSELF, issue="Project-HAMi/HAMi#2923")
def stale_cgroups(left: Leftovers) -> Verdict:
    """Every lease cgroup is of a lease that lives."""
    return _stale(left, left.cgroups, "cgroup")


@check(Leftovers, AREA, fix=_BY_ITSELF, issue="Project-HAMi/HAMi#404")
def stale_hook_files(left: Leftovers) -> Verdict:
    """Every file of the hook is of a lease that lives."""
    return _stale(left, left.hook, "hook files")


@check(Leftovers, AREA, fix=_BY_ITSELF, issue="saharmor/dalle-playground#87")
def stale_cdi_files(left: Leftovers) -> Verdict:
    """Every CDI device of ours is of a lease that lives."""
    return _stale(left, left.cdi, "CDI file")


@check(Leftovers, AREA, fix=_BY_ITSELF, issue="kubernetes/kubernetes#52678")
def stale_bank_files(left: Leftovers) -> Verdict:
    """Every copy of KFD's memory banks is of a lease that lives."""
    return _stale(left, left.banks, "memory banks")


@check(Leftovers, AREA, fix=_BY_ITSELF, issue="kubernetes/kubernetes#116125")
def stale_sidecars(left: Leftovers) -> Verdict:
    """Every lease that lives beside the ledger (/run/nodeagent/leases) is in the ledger."""
    return _stale(left, left.sidecars, "sidecar")


@check(
    Leftovers,
    AREA,
    fix="setfacl -x u:UID /dev/kfd /dev/dri/*, unless your login manager (uaccess) put it there",
    issue="ROCm/spur#799",
)
def stale_acls(left: Leftovers) -> Verdict:
    """No user without a lease has an entry of their own on a GPU's device node."""
    if left.live is None:
        return unseen(left.why_unknown)
    strangers = sorted(left.acl_uids - left.lease_uids - left.exempt_uids)
    return either([f"uid {uid}" for uid in strangers], warn, f"{len(left.acl_uids)} entries")


@check(
    Leftovers,
    AREA,
    fix="with no agent running: umount /run/nodeagent/hook/usage/*; a running agent keeps eight",
    issue="Project-HAMi/HAMi-core#86",
)
def stale_mounts(left: Leftovers) -> Verdict:
    """The hook's small file systems are mounted once each, and only where they belong."""
    twice = sorted({point for point in left.mounts if left.mounts.count(point) > 1})
    return either(
        [f"{point}: {left.mounts.count(point)} times" for point in twice], warn, f"{len(left.mounts)} mounts"
    )


@check(
    Leftovers,
    AREA,
    fix="one agent a node shares its devices; end the other, then rmdir its empty subtree",
    issue="kubernetes/kubernetes#42412",
)
def other_agents(left: Leftovers) -> Verdict:
    """No other agent has leases on this node."""
    return either(list(left.instances), warn, "none")


def _stale(left: Leftovers, found: Collection[int], what: str) -> Verdict:
    if left.live is None:
        return unseen(left.why_unknown)
    stale = sorted(set(found) - left.live)
    return either([f"{what} of lease {lease}" for lease in stale], warn, f"{len(found)}, all of live leases")


CHECKS = (
    stale_cgroups,
    stale_hook_files,
    stale_cdi_files,
    stale_bank_files,
    stale_sidecars,
    stale_acls,
    stale_mounts,
    other_agents,
)
