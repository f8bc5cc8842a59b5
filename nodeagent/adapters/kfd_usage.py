"""Who uses which GPU by KFD: /sys/class/kfd/kfd/proc/<pid>, named by pids of the initial pid namespace.

Files as in drivers/gpu/drm/amd/amdkfd/kfd_process.c: ``vram_<gpu_id>`` (bytes), ``queues/<qid>/gpuid``,
``stats_<gpu_id>/{evicted_ms,cu_occupancy}``, ``sdma_<gpu_id>`` (µs). A secondary context (Linux 7) has the
same files in ``context_<n>``, with memory and queues of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from nodeagent.adapters.sysfs import SysTree, Unread
from nodeagent.domain.watch import KfdUse

PROC = "sys/class/kfd/kfd/proc"


def kfd_use(tree: SysTree, pids: Collection[int] | None = None) -> tuple[KfdUse, ...]:
    """One row a process and GPU that it has memory or queues on; of all processes, or of *pids*.

    A file that cannot be read counts as nothing: a process may end at any time.
    """
    rows: list[KfdUse] = []
    for pid in tree.numbered(PROC):
        if pids is None or pid in pids:
            rows += _of_process(tree, pid)
    return tuple(rows)


def kfd_holders(tree: SysTree, gpu_ids: Collection[int]) -> tuple[int, ...]:
    """Pids of the processes that KFD counts on any of these GPUs, used or not: they have it open.

    The files are there from the open of /dev/kfd to the end of the process's memory map, on every GPU that
    its device cgroup allows. Such a one keeps the card from being partitioned anew.
    """
    return tuple(
        pid
        for pid in tree.numbered(PROC)
        if any(gpu in gpu_ids for one in _contexts(tree, pid) for gpu, _ in _by_gpu(tree, one, "vram_"))
    )


def sdma_us(tree: SysTree, pids: Collection[int]) -> int:
    """SDMA time of *pids* in all, µs. Slow: the kernel borrows the process's memory map to read it."""
    return sum(
        _number(tree, f"{context}/{name}")
        for pid in pids
        for context in _contexts(tree, pid)
        for name in _names(tree, context)
        if name.startswith("sdma_")
    )


def _of_process(tree: SysTree, pid: int) -> Iterator[KfdUse]:
    vram: defaultdict[int, int] = defaultdict(int)
    queues: defaultdict[int, list[str]] = defaultdict(list)
    for context in _contexts(tree, pid):
        for gpu_id, size in _by_gpu(tree, context, "vram_"):
            vram[gpu_id] += size
        for queue in tree.numbered(f"{context}/queues"):
            gpu_id = _number(tree, f"{context}/queues/{queue}/gpuid")
            queues[gpu_id].append(f"{context.rpartition('/')[2]}/{queue}")
    for gpu_id in sorted(gpu for gpu in vram.keys() | queues.keys() if vram[gpu] or queues[gpu]):
        stats = f"{PROC}/{pid}/stats_{gpu_id}"
        occupancy = tree.number(f"{stats}/cu_occupancy")
        yield KfdUse(
            pid=pid,
            gpu_id=gpu_id,
            vram_bytes=vram[gpu_id],
            queues=tuple(queues[gpu_id]),
            cu_occupancy=None if isinstance(occupancy, Unread) else occupancy,
            evicted_ms=_number(tree, f"{stats}/evicted_ms"),
        )


def _contexts(tree: SysTree, pid: int) -> tuple[str, ...]:
    own = f"{PROC}/{pid}"
    return own, *(f"{own}/{name}" for name in _names(tree, own) if name.startswith("context_"))


def _by_gpu(tree: SysTree, directory: str, prefix: str) -> Iterator[tuple[int, int]]:
    for name in _names(tree, directory):
        gpu_id = name.removeprefix(prefix)
        if gpu_id != name and gpu_id.isdecimal():
            yield int(gpu_id), _number(tree, f"{directory}/{name}")


def _names(tree: SysTree, directory: str) -> tuple[str, ...]:
    names = tree.names(directory)
    return () if isinstance(names, Unread) else names


def _number(tree: SysTree, path: str) -> int:
    value = tree.number(path)
    return 0 if isinstance(value, Unread) else max(0, value)
