"""The end of a job's lease: asked for by Slurm's epilog, which may be late, early, repeated or lost."""

from __future__ import annotations

from nodeagent.domain.lease import ENDED, Lease
from nodeagent.domain.slurm import Job, Verdict, Word
from nodeagent.service.job_leases import JobLeases
from nodeagent.service.release import quarantined


class Epilog:
    """Ends what a job holds, and says how far the proof has come."""

    def __init__(self, leases: JobLeases) -> None:
        self._leases = leases

    def run(self, job: Job, *, uid: int | None, wait_seconds: float) -> Verdict:
        """End the job's open lease, and answer within *wait_seconds*. Again is success."""
        over = [lease for lease in self._leases.of(job) if _over(lease, job)]
        mine = [lease for lease in over if lease.state not in ENDED or quarantined(lease)]
        if not mine:
            return Verdict(Word.NONE)
        named = ", ".join(f"lease {lease.id}" for lease in mine)
        self._leases.retry([lease for lease in mine if lease.state in ENDED], wait_seconds / 2)
        self._leases.end(mine, uid=uid, reason="its job ended")
        if not self._leases.ended(mine, wait_seconds / 2):
            return Verdict(Word.RELEASING, f"{named}: not proved clean yet")
        if any(map(quarantined, self._leases.now(mine))):
            return Verdict(Word.QUARANTINED, f"{named}: a slice is kept back until it is clean")
        return Verdict(Word.RELEASED, named)


def _over(lease: Lease, job: Job) -> bool:
    """Whether the run that holds *lease* ended: a late epilog is no word about the run that came after.

    By Slurm's own time of its start where that is told, else by when the script ran.
    """
    return job.started_as(lease.request_id) or (job.at_ns is not None and lease.created_ns <= job.at_ns)
