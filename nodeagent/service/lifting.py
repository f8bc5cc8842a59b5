"""Takes the VRAM limits of leases away while nothing is enforced, and leaves the leases as they are."""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.adapters.cgroup import CgroupRef
from nodeagent.adapters.dmem import DmemController
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.records import EffectRecord
from nodeagent.service.cgroup_effects import DMEM, ref_of
from nodeagent.service.job_effects import in_job


def lift_all(dmem: DmemController, journal: Iterable[EffectRecord]) -> int:
    """Lift what the DMEM effects of *journal* limit; how many limits were in force.

    Raises OutsideFault after all were tried.
    """
    lifted, failed = 0, None
    for record in journal:
        ref = ref_of(record.evidence or {})
        if record.kind != DMEM or record.arguments.get("shared") or ref is None:
            continue
        try:
            lifted += _lift(dmem, record, ref)
        except OutsideFault as fault:
            failed = fault
    if failed is not None:
        raise failed
    return lifted


def lift_cgroup(dmem: DmemController, ref: CgroupRef) -> int:
    """Lift every limit of a lease's own cgroup; how many there were. One that is gone has none."""
    try:
        limited = [region for region, limit in dmem.limits(ref).items() if limit is not None]
        for region in limited:
            dmem.lift(ref, region)
    except FileNotFoundError:
        return 0
    return len(limited)


def _lift(dmem: DmemController, record: EffectRecord, ref: CgroupRef) -> int:
    if not in_job(record.arguments):
        return lift_cgroup(dmem, ref)
    told = dict(record.arguments["regions"])  # type: ignore[arg-type]
    try:
        held = dmem.limits(ref)
        ours = [region for region, limit in told.items() if held.get(region) == int(str(limit))]
        for region in ours:  # a lower one is Slurm's
            dmem.lift(ref, region)
    except FileNotFoundError:
        return 0
    return len(ours)
