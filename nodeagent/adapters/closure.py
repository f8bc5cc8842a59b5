"""Cgroups outside leases: what there is of them, and holding them at a limit that can be taken back.

What was written is on record before it is, by path, inode and boot: limits outlive the agent, for leases do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.adapters.cgroup_sweep import child_names
from nodeagent.adapters.dmem import DmemController
from nodeagent.adapters.processes import PROC
from nodeagent.domain.errors import OutsideFault

RECORD = "closure.json"
_PF_KTHREAD = 0x0020_0000  # include/linux/sched.h; field 9 of proc_pid_stat(5)


@dataclass(frozen=True, slots=True)
class Capped:
    """One limit that the agent wrote outside leases."""

    path: str
    inode: int
    region: str
    limit_bytes: int
    was: int | None  # bytes before the agent wrote at all; None: unlimited


@dataclass(frozen=True, slots=True)
class Capping:
    """What came of holding one cgroup: regions whose limit somebody had changed, and those that failed."""

    restored: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)


class OutsideCgroups:
    """The cgroups of *tree*'s mount outside leases. *directory* keeps the record of what was written."""

    def __init__(
        self, tree: CgroupTree, dmem: DmemController, directory: Path, boot_id: str, *, proc: Path = PROC
    ) -> None:
        self._tree = tree
        self._dmem = dmem
        self._record = directory / RECORD
        self._boot_id = boot_id
        self._proc = proc
        self._kernel_threads: set[int] = set()
        self._capped: dict[tuple[str, str], Capped] | None = None

    def children(self, path: str) -> Sequence[str]:
        """The names of the cgroups in *path*, sorted; none where it is gone."""
        ref = self._tree.resolve(path)
        if ref is None:
            return []
        try:
            with self._tree.open(ref) as cgroup:
                return sorted(child_names(cgroup.fileno()))
        except FileNotFoundError:
            return []

    def whole(self, path: str) -> bool:
        """Whether *path* can only be held as one: it has processes itself, or a user owns it."""
        ref = self._tree.resolve(path)
        if ref is None:
            return True
        try:
            with self._tree.open(ref) as cgroup:
                return cgroup.owner != os.geteuid() or bool(cgroup.procs())
        except FileNotFoundError:
            return True

    def strays(self) -> tuple[int, ...]:
        """Processes in the root cgroup itself, which no limit reaches. Kernel threads do not count."""
        root = self._tree.resolve("/")
        if root is None:
            return ()
        with self._tree.open(root) as cgroup:
            pids = set(cgroup.procs()) - {0}
        self._kernel_threads &= pids
        self._kernel_threads |= {pid for pid in pids - self._kernel_threads if self._is_kernel_thread(pid)}
        return tuple(sorted(pid for pid in pids - self._kernel_threads if self._exists(pid)))

    def divide(self, path: str) -> None:
        """Give the children of *path* dmem files. Raises OutsideFault where they cannot have them."""
        self._dmem.enable(join_any(path))

    def cap(self, path: str, limits: Mapping[str, int]) -> Capping:
        """Hold *path* at *limits*, bytes by region. A cgroup that is gone needs none."""
        ref = self._tree.resolve(path)
        try:
            table = self._dmem.limits(ref) if ref else None
        except FileNotFoundError:
            table = None
        if ref is None or table is None:
            return Capping()
        restored, failed = [], {}
        for region, limit_bytes in limits.items():
            if region in table and table[region] == limit_bytes:
                continue
            try:
                if self._cap(ref, region, limit_bytes, table.get(region)):
                    restored.append(region)
            except FileNotFoundError:
                break
            except OutsideFault as fault:
                failed[region] = str(fault)
        return Capping(tuple(restored), failed)

    def regions(self) -> frozenset[str]:
        """The regions that something is recorded of: what was closed stays so while leases may live."""
        return frozenset(region for _, region in self._known())

    def count(self) -> int:
        """How many limits are on record."""
        return len(self._known())

    def _cap(self, ref: CgroupRef, region: str, limit_bytes: int, now: int | None) -> bool:
        """Write and record one limit; whether it was there before, and had been changed."""
        known = self._known().get((ref.path, region))
        ours = known is not None and known.inode == ref.inode
        capped = Capped(ref.path, ref.inode, region, limit_bytes, known.was if known and ours else now)
        if known != capped:
            self._known()[ref.path, region] = capped
            self._write()
        self._dmem.cap(ref, region, limit_bytes)
        return known == capped

    def release(self, keep: Iterable[tuple[str, str]] = ()) -> None:
        """Take back every recorded limit whose (path, region) is not in *keep*, where it is still ours."""
        kept = set(keep)
        gone = [one for key, one in self._known().items() if key not in kept]
        for one in gone:
            self._release(one)
            del self._known()[one.path, one.region]
        if gone:
            self._write()

    def _release(self, one: Capped) -> None:
        ref = CgroupRef(one.path, one.inode)
        try:
            if self._dmem.limits(ref).get(one.region) == one.limit_bytes:
                self._dmem.cap(ref, one.region, one.was)
        except FileNotFoundError:
            return  # and its limit with it

    def _known(self) -> dict[tuple[str, str], Capped]:
        if self._capped is None:
            self._capped = {(one.path, one.region): one for one in self._read()}
        return self._capped

    def _read(self) -> list[Capped]:
        try:
            read = json.loads(self._record.read_text(encoding="utf-8"))
            if read["boot_id"] != self._boot_id:
                return []  # limits do not outlive a boot, and inodes mean others now
            return [Capped(**one) for one in read["capped"]]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, KeyError) as fault:
            raise OutsideFault(self._record, f"is no record of the closure ({fault}); remove it") from None
        except OSError as fault:
            raise OutsideFault(self._record, str(fault.strerror)) from fault

    def _write(self) -> None:
        capped = [asdict(one) for one in self._known().values()]
        new = self._record.with_suffix(".new")
        try:
            new.write_text(json.dumps({"boot_id": self._boot_id, "capped": capped}), encoding="utf-8")
            new.replace(self._record)
        except OSError as fault:
            raise OutsideFault(new, str(fault.strerror)) from fault

    def _is_kernel_thread(self, pid: int) -> bool:
        try:
            stat = (self._proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
            return bool(int(stat.rpartition(")")[2].split()[6]) & _PF_KTHREAD)
        except (OSError, IndexError, ValueError):
            return False

    def _exists(self, pid: int) -> bool:
        return (self._proc / str(pid)).exists()


def join_any(path: str) -> str:
    """The path of some child of *path*: what `DmemController.enable` takes to reach it."""
    return f"{path.rstrip('/')}/any"
