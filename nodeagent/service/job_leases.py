"""The leases of Slurm's jobs: found by their job, and ended with it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import wait

from nodeagent.domain.lease import ENDED, HolderKind, Lease, LeaseState, SliceState
from nodeagent.domain.slurm import Job
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.changes import Changes
from nodeagent.service.release import Releaser

MOST = 1000  # leases in one answer of the ledger


class JobLeases:
    """What the ledger has of a job, and the end of it."""

    def __init__(self, ledger: Ledger, releaser: Releaser, changes: Changes) -> None:
        self._ledger = ledger
        self._releaser = releaser
        self._changes = changes

    def of(self, job: Job) -> tuple[Lease, ...]:
        """Every lease that the job's id ever had, oldest first."""
        found: list[Lease] = []
        while True:  # a user may have a job requeued without end: its newest lease counts most
            after = found[-1].id if found else 0
            more = self._ledger.leases(holder=(HolderKind.SLURM, str(job.id)), after=after, limit=MOST)
            found += more
            if len(more) < MOST:
                return tuple(found)

    def of_run(self, job: Job) -> Lease | None:
        """The newest lease of this very run."""
        return next((one for one in reversed(self.of(job)) if job.is_run(one.request_id)), None)

    def active_of(self, uid: int) -> tuple[Lease, ...]:
        """The leases under which jobs of *uid* may run now."""
        jobs = (one for one in self._ledger.live(LeaseState.ACTIVE) if one.holder.kind is HolderKind.SLURM)
        return tuple(lease for lease in jobs if lease.holder.uid == uid)

    def end(self, leases: Sequence[Lease], *, uid: int | None, reason: str) -> None:
        """Begin to release *leases*; ended ones stay as they are."""
        for lease in leases:
            self._releaser.end(lease.id, uid=uid, reason=reason)

    def retry(self, leases: Sequence[Lease], seconds: float) -> None:
        """Look again, for at most *seconds*, whether what *leases* left in quarantine is clean by now."""
        wait([self._releaser.retry(lease.id) for lease in leases], seconds)

    def ended(self, leases: Sequence[Lease], seconds: float) -> bool:
        """Whether all of *leases* have ended, within *seconds*."""

        def look() -> bool | None:
            return all(one.state in ENDED for one in self.now(leases)) or None

        return bool(self._changes.wait_for(look, seconds))

    def ending(self, ids: Sequence[int]) -> tuple[Lease, ...]:
        """Those of the leases *ids* whose release is under way."""
        found = (self._ledger.lease(one) for one in ids)
        return tuple(one for one in found if one is not None and one.state is LeaseState.RELEASING)

    def now(self, leases: Sequence[Lease]) -> tuple[Lease, ...]:
        """The same leases, as they are now."""
        found = (self._ledger.lease(lease.id) for lease in leases)
        return tuple(lease for lease in found if lease is not None)

    def tell_refused(self, job: Job, why: str) -> None:
        """Say in the events that a job cannot have what it asks for. *why* has no word of a user's."""
        if self._ledger.health().writable:
            with self._ledger.write(release=True) as tx:
                tx.event("refused", uid=job.uid, reason=why, data={"job": job.id})

    def follow(self, lease_id: int, seconds: float) -> Lease | None:
        """The lease once it is granted or has ended, or as it is after *seconds*."""

        def look() -> Lease | None:
            lease = self._ledger.lease(lease_id)
            waits = lease is not None and lease.state in (LeaseState.QUEUED, LeaseState.PREPARING)
            return None if waits else lease

        return self._changes.wait_for(look, seconds, lease_id=lease_id) or self._ledger.lease(lease_id)

    def in_the_way(self, devices: Sequence[str], beside: int | None) -> str:
        """Who holds something of *devices*, but for the lease *beside*: for an administrator to read."""
        held = [one for one in self._ledger.held() if one.placed.device in devices and one.lease != beside]
        unclean = {one.lease for one in held if one.state is not SliceState.HELD}
        leases = sorted({one.lease for one in held})
        said = ", ".join(f"{one} (not clean yet)" if one in unclean else f"{one}" for one in leases[:8])
        return f"{', '.join(devices[:4])}: {f'held by lease {said}' if said else 'nothing is granted now'}"
