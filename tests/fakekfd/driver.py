"""The fake driver's state: GPUs, processes, allocations, queues, and what each call came to.

What it holds is what the real one holds (drivers/gpu/drm/amd/amdkfd): a process is a thread group that
opened /dev/kfd; its memory and queues live until its address space ends, whoever still holds a descriptor.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VRAM, GTT, USERPTR, DOORBELL = 1, 2, 4, 8
PAGE = 4096


@dataclass
class Gpu:
    """One GPU. *limit*: the bytes that the kernel lets be allocated, at most *vram*."""

    gpu_id: int
    minor: int
    vram: int
    limit: int
    pairs: bool = False  # RDNA: CUs come in pairs
    used: int = 0
    peak: int = 0
    denied: int = 0


@dataclass
class Allocation:
    """Memory of a process. Only flags with VRAM in them count against a GPU."""

    handle: int
    pid: int
    gpu_id: int
    size: int
    flags: int
    context: int = 0  # of the process: 0 is its first
    exported: bool = False  # somebody may hold the file, and with it the memory


@dataclass
class Queue:
    """A compute or copy queue of a process; *mask* as set last, hex with bit 0 rightmost, "" for all CUs."""

    queue_id: int
    pid: int
    gpu_id: int
    kind: int
    ring: int
    size: int
    write_pointer: int
    read_pointer: int
    mask: str = ""
    mask_bits: int = 0
    priority: int = 0


@dataclass
class Process:
    """A thread group that opened the device."""

    pid: int
    pidfd: int
    openings: set[int] = field(default_factory=set)
    allocations: dict[int, Allocation] = field(default_factory=dict)
    queues: dict[int, Queue] = field(default_factory=dict)
    events: dict[int, bool] = field(default_factory=dict)
    contexts: int = 1  # the last one is what allocates
    queue_ids: Any = field(default_factory=itertools.count)
    event_ids: Any = field(default_factory=lambda: itertools.count(1))


class Driver:
    """Shared by the files, the ioctls and the packet processor; hold `lock` to look or change."""

    def __init__(self, gpus: list[Gpu]) -> None:
        self.gpus = {gpu.gpu_id: gpu for gpu in gpus}
        self.processes: dict[int, Process] = {}
        self.openings: dict[int, int] = {}  # opening -> pid
        self.log: list[dict[str, Any]] = []
        self.packets: dict[str, int] = {}
        self.unknown: dict[str, int] = {}
        self.free_delay = 0.0  # seconds from the end of a process's sysfs entry to that of its memory
        self.lock = threading.RLock()
        self._handles = itertools.count(1)
        self._opening_numbers = itertools.count(1)

    def open(self, tid: int) -> int:
        """Thread *tid* opened the device."""
        pid = group_of(tid)
        with self.lock:
            if pid not in self.processes:
                self.processes[pid] = Process(pid, os.pidfd_open(pid))
            opening = next(self._opening_numbers)
            self.openings[opening] = pid
            self.processes[pid].openings.add(opening)
            return opening

    def release(self, opening: int) -> None:
        """An opening's last descriptor and mapping are gone; with the last opening the process ends here."""
        with self.lock:
            process = self.processes.get(self.openings.pop(opening, 0))
            if process is not None:
                process.openings.discard(opening)
                if not process.openings:
                    self.end(process)

    def end(self, process: Process) -> None:
        """What the kernel does when an address space goes: first the entry in sysfs, then the memory."""
        with self.lock:
            if self.processes.pop(process.pid, None) is None:
                return
            os.close(process.pidfd)
        if self.free_delay:
            threading.Timer(self.free_delay, self._free_all, [process]).start()
        else:
            self._free_all(process)

    def _free_all(self, process: Process) -> None:
        with self.lock:
            for handle in list(process.allocations):
                self.free(process, handle)

    def caller(self, opening: int, tid: int) -> Process:
        """The process of an ioctl; EBADF for a child that came by its parent's descriptor (kfd_ioctl)."""
        process = self.processes.get(self.openings.get(opening, 0))
        if process is None or process.pid != group_of(tid):
            raise OSError(errno.EBADF, "not the process that opened it")
        return process

    def gpu(self, gpu_id: int) -> Gpu:
        """EINVAL for an unknown one."""
        if gpu_id not in self.gpus:
            raise OSError(errno.EINVAL, f"no GPU {gpu_id}")
        return self.gpus[gpu_id]

    def allocate(self, process: Process, gpu_id: int, size: int, flags: int) -> Allocation:
        """Memory for *process*; ENOMEM over the GPU's limit."""
        if size == 0:
            raise OSError(errno.EINVAL, "no bytes")
        size += -size % PAGE
        if flags & VRAM:
            self.charge(process.pid, gpu_id, size, flags)
        else:
            self.gpu(gpu_id)
            self.note("alloc", pid=process.pid, gpu_id=gpu_id, size=size, flags=flags, code=0)
        number = next(self._handles)
        allocation = Allocation(number, process.pid, gpu_id, size, flags, process.contexts - 1)
        process.allocations[allocation.handle] = allocation
        return allocation

    def charge(self, pid: int, gpu_id: int, size: int, flags: int) -> None:
        """Count VRAM; ENOMEM over the GPU's limit. The refusal and the success both go to the log."""
        gpu = self.gpu(gpu_id)
        fits = gpu.used + size <= min(gpu.limit, gpu.vram)
        code = 0 if fits else errno.ENOMEM
        self.note("alloc", pid=pid, gpu_id=gpu_id, size=size, flags=flags, code=code)
        if not fits:
            gpu.denied += 1
            raise OSError(errno.ENOMEM, "over the GPU's limit")
        gpu.used += size
        gpu.peak = max(gpu.peak, gpu.used)

    def free(self, process: Process, handle: int) -> None:
        """EINVAL for an unknown handle. What was exported stays in use: somebody keeps its file for ever."""
        allocation = process.allocations.pop(handle, None)
        if allocation is None:
            raise OSError(errno.EINVAL, f"no allocation {handle}")
        if allocation.flags & VRAM and not allocation.exported:
            self.gpus[allocation.gpu_id].used -= allocation.size

    def export(self, process: Process, handle: int) -> None:
        """EINVAL for an unknown handle."""
        if handle not in process.allocations:
            raise OSError(errno.EINVAL, f"no allocation {handle}")
        process.allocations[handle].exported = True

    def vram(self, process: Process, gpu_id: int, context: int = 0) -> int:
        """Bytes of a process's context on a GPU, as kfd/proc/<pid>/vram_<gpu_id> shows them of the first."""
        held = (a for a in process.allocations.values() if a.gpu_id == gpu_id and a.context == context)
        return sum(a.size for a in held if a.flags & VRAM)

    def note(self, what: str, **values: Any) -> None:
        """Add to the log of what reached the kernel."""
        self.log.append({"what": what, **values})

    def forget(self) -> None:
        """Empty the log, and begin the peaks anew."""
        self.log.clear()
        for gpu in self.gpus.values():
            gpu.peak, gpu.denied = gpu.used, 0

    def snapshot(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        with self.lock:
            processes = self.processes.values()
            return {
                "gpus": [asdict(gpu) for gpu in self.gpus.values()],
                "processes": [process.pid for process in processes],
                "allocations": [asdict(a) for process in processes for a in process.allocations.values()],
                "queues": [asdict(q) for process in processes for q in process.queues.values()],
                "log": [dict(entry) for entry in self.log],
                "packets": dict(self.packets),
                "unknown": dict(self.unknown),
            }


def group_of(tid: int) -> int:
    """The process of a thread; EBADF when it is gone."""
    try:
        status = Path(f"/proc/{tid}/status").read_text(encoding="utf-8")
    except OSError as error:
        raise OSError(errno.EBADF, "the caller is gone") from error
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Tgid:"))
