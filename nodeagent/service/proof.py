"""The proof that a slice's memory is back: KFD has let go of who died, and VRAM is used by known users alone.

A dead process's KFD entry goes before its memory (kfd_process.c: the release worker removes sysfs first, then
frees buffers), so both are waited for. Where dmem counts the lease's VRAM, that proves the second better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.dmem import DmemController
from nodeagent.adapters.processes import start_time_of
from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.device import Inventory
from nodeagent.domain.guarantee import Hold
from nodeagent.domain.watch import KfdUse
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.effects import Arguments, Evidence, Pending, Planned, WaitInBoot
from nodeagent.service.job_effects import in_job
from nodeagent.service.means import Setting
from nodeagent.service.orders import Tier
from nodeagent.service.owners import owners
from nodeagent.service.sampling import Look, Sampler

KFD, VRAM = "kfd", "vram"
REMEMBERED_NS = SECOND_NS  # how long a look at all processes may say that memory is not back yet
Idle = Callable[[str, Inventory], int | None]


class KfdMeans:
    """Plans that release waits until KFD has no process of the lease."""

    at_best = Hold()

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def tier(self) -> Tier:
        return Tier("kfd", True, "a slice is given back when KFD has let go of those who died with it")

    def promise(self, setting: Setting) -> Hold:
        return Hold()

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        devices = [setting.inventory.device(one.device) for one in setting.placed]
        gpus = {str(one.gpu_id): one.key for one in devices if one is not None and one.gpu_id}
        return (
            [Planned(KFD, {"lease": lease_id, "gpus": gpus, "boot_id": self._clock.boot_id})] if gpus else []
        )


class KfdEffect(WaitInBoot):
    """The wait for KFD's release worker.

    Who lives is another effect's to wait for. An ended process of which nobody can tell any more whose it was
    counts as the lease's if it has something on the lease's GPUs.
    """

    rebooted: ClassVar[Evidence] = {"processes": "ended with the boot before"}

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        tree: CgroupTree | None,
        kfd: Callable[[], Iterable[KfdUse]],
    ) -> None:
        super().__init__(clock)
        self._ledger = ledger
        self._tree = tree
        self._kfd = kfd

    def wait(self, arguments: Arguments) -> Evidence | Pending:
        gpus: Mapping[str, str] = arguments["gpus"]
        ended = [one for one in self._kfd() if str(one.gpu_id) in gpus and start_time_of(one.pid) is None]
        if not ended:
            return {"processes": 0}
        whose = owners(self._ledger, self._tree, self._clock)
        left = [one for one in ended if whose.of_zombie(one.pid) in (None, arguments["lease"])]
        if not left:
            return {"processes": 0}
        said = ", ".join(f"{one.pid} ({one.vram_bytes} bytes, {len(one.queues)} queues)" for one in left[:8])
        devices = frozenset(gpus[str(one.gpu_id)] for one in left)
        return Pending(f"KFD has not let go of ended processes: {said}", devices=devices)


class VramMeans:
    """Plans the proof by the cards' own counters, for the pools that no limit of the lease's counts.

    *idle* gives a pool's use when nobody worked on it, in bytes; None where it was never seen so in the
    epochs of that inventory.
    """

    at_best = Hold()

    def __init__(self, dmem: DmemController | None, idle: Idle, clock: Clock, tolerance: int) -> None:
        self._dmem = dmem
        self._idle = idle
        self._clock = clock
        self._tolerance = tolerance

    def tier(self) -> Tier:
        return Tier(
            "vram", True, f"without dmem, VRAM is back when at most {self._tolerance} bytes are nobody's"
        )

    def promise(self, setting: Setting) -> Hold:
        return Hold()

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        # A job's cgroup goes before the job's lease does, and with it what counted.
        lasts = setting.cgroup is not None and not setting.adopted and not in_job(setting.cgroup)
        counted = self._counted() if lasts else frozenset()
        pools: dict[str, dict[str, Any]] = {}
        for one in setting.placed:
            pool = setting.inventory.pool(one.pool)
            if pool is not None and pool.region not in counted:
                idle = self._idle(pool.key, setting.inventory)
                told = pools.setdefault(pool.key, {"idle_bytes": idle, "devices": []})
                told["devices"].append(one.device)
        arguments = {"lease": lease_id, "pools": pools, "boot_id": self._clock.boot_id}
        return [Planned(VRAM, arguments)] if pools else []

    def _counted(self) -> frozenset[str]:
        if self._dmem is None or self._dmem.unavailable() is not None:
            return frozenset()
        return frozenset(self._dmem.capacity())


@dataclass(frozen=True, slots=True)
class _Looked:
    at_ns: int  # boot time, before the look
    look: Look


class VramEffect(WaitInBoot):
    """The proof by the cards' counters: used, less idle, less what others are known to use, is little.

    Page tables and what a driver keeps beside buffers are in no process's figures: *tolerance*, bytes, is
    for them.
    """

    rebooted: ClassVar[Evidence] = {"vram": "of the boot before"}

    def __init__(
        self,
        sampler: Sampler,
        used: Callable[[str], int | None],
        clock: Clock,
        tolerance: int,
    ) -> None:
        super().__init__(clock)
        self._sampler = sampler
        self._used = used
        self._tolerance = tolerance
        self._last: _Looked | None = None

    def wait(self, arguments: Arguments) -> Evidence | Pending:
        pools: Mapping[str, Any] = arguments["pools"]
        used = {pool: self._used(pool) for pool in pools}
        over = {
            pool: used_bytes - told["idle_bytes"]
            for pool, told in pools.items()
            if (used_bytes := used[pool]) is not None and told["idle_bytes"] is not None
        }
        if any(size > self._tolerance for size in over.values()):
            over = self._less_others(over, int(arguments["lease"]))
        unexplained = {pool: size for pool, size in over.items() if size > self._tolerance}
        if unexplained:
            said = ", ".join(f"{size} bytes on {pool}" for pool, size in sorted(unexplained.items()))
            devices = frozenset(device for pool in unexplained for device in pools[pool]["devices"])
            return Pending(f"VRAM is used by nobody that is known: {said}", devices=devices)
        return {"vram": {pool: over.get(pool, _unknown(used[pool])) for pool in pools}}

    def _less_others(self, over: Mapping[str, int], lease: int) -> dict[str, int]:
        """*over* by pool, bytes, less what others than *lease* use.

        A look reads every process, and this is asked many times a second. One of a moment ago may say that it
        is too soon; that nothing is left only a new one can, for what others freed since would hide a leak.
        """
        now, last = self._clock.boot_ns(), self._last
        if last is not None and now - last.at_ns < REMEMBERED_NS:
            left = _less(over, last.look.by_pool(but=lease))
            if any(size > self._tolerance for size in left.values()):
                return left
        self._last = _Looked(now, self._sampler.look())
        return _less(over, self._last.look.by_pool(but=lease))


def _less(sizes: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    return {pool: size - others.get(pool, 0) for pool, size in sizes.items()}


def _unknown(used: int | None) -> str:
    return "the driver does not tell" if used is None else "the card was never seen idle"
