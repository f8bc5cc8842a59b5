"""KFD's processes, read from copied trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.adapters.kfd_usage import PROC, kfd_use, sdma_us
from nodeagent.adapters.sysfs import SysTree
from nodeagent.domain.watch import KfdUse


def write(root: Path, files: dict[str, object]) -> SysTree:
    for name, value in files.items():
        path = root / PROC / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(value))
    return SysTree(root)


def test_memory_queues_and_stats_by_gpu(tmp_path: Path) -> None:
    """Each GPU that a process has memory or queues on is one row."""
    tree = write(
        tmp_path,
        {
            "42/vram_11": "4096\n",
            "42/vram_12": "0\n",
            "42/queues/1/gpuid": 11,
            "42/queues/3/gpuid": 11,
            "42/stats_11/cu_occupancy": "40\n",
            "42/stats_11/evicted_ms": "7\n",
        },
    )
    assert kfd_use(tree) == (KfdUse(42, 11, 4096, ("42/1", "42/3"), 40, 7),)


def test_secondary_contexts_are_added(tmp_path: Path) -> None:
    """What a process holds in contexts of its own making is its memory and its queues, too."""
    tree = write(
        tmp_path,
        {
            "42/vram_11": 100,
            "42/context_1/vram_11": 50,
            "42/context_2/vram_11": 7,
            "42/context_2/queues/0/gpuid": 11,
        },
    )
    assert kfd_use(tree) == (KfdUse(42, 11, 157, ("context_2/0",)),)


def test_a_process_that_only_looks_is_no_user(tmp_path: Path) -> None:
    """A monitor opens /dev/kfd and allocates nothing."""
    assert kfd_use(write(tmp_path, {"42/vram_11": 0, "42/pasid": 3})) == ()


@pytest.mark.parametrize("garbage", ["", "many", "-5", "1\n2", "9" * 40])
def test_a_garbled_figure_counts_as_nothing(tmp_path: Path, garbage: str) -> None:
    """A file that is no number takes nobody else's figures away."""
    tree = write(tmp_path, {"42/vram_11": garbage, "43/vram_11": 5})
    assert kfd_use(tree) == (KfdUse(43, 11, 5),)


def test_only_the_processes_that_are_asked_for(tmp_path: Path) -> None:
    """A second look at some processes reads no others."""
    tree = write(tmp_path, {"42/vram_11": 5, "43/vram_11": 5})
    assert [one.pid for one in kfd_use(tree, {43})] == [43]


def test_a_node_without_kfd_has_no_users(tmp_path: Path) -> None:
    """Nothing is there, and nothing is said."""
    assert kfd_use(SysTree(tmp_path)) == ()


def test_sdma_time_is_added_up(tmp_path: Path) -> None:
    """Over GPUs, contexts and processes."""
    tree = write(tmp_path, {"42/sdma_11": 5, "42/sdma_12": 6, "42/context_0/sdma_11": 7, "43/sdma_11": 80})
    assert sdma_us(tree, {42}) == 18
