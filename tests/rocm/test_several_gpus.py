"""One real HIP program on several GPUs of one lease, with slices that differ, and one not leased."""

from __future__ import annotations

import signal

import pytest

from .machine import GIB, HOOK, MIB, Leased, Ran

pytestmark = [pytest.mark.rocm, pytest.mark.root, pytest.mark.cgroup2]
FIRST, SECOND, OTHER = range(3)
SLICES: list[dict[str, object]] = [
    {"device": ["0000:63:00.0/0"], "cu_percent": 25, "vram_bytes": 4 * GIB},
    {"device": ["0000:64:00.0/0"], "cu_percent": 50, "vram_bytes": 8 * GIB},
]
CUS = ["ffffff", "ffffffffffff"]  # whole rows: 24 and 48 of 104
# All GPUs of the machine, and no mask: what the environment would do is undone.
ALL_GPUS = ("env", "-u", "ROCR_VISIBLE_DEVICES", "-u", "HSA_CU_MASK")


def test_each_gpu_has_its_own_limit(leased: Leased, program: str) -> None:
    """What is over the limit of one is refused while the other goes on, to its own limit."""
    first = ("devices", "malloc=2048", "malloc=3000")
    second = ("device=1", "malloc=3002", "malloc=4000", "malloc=3004")
    ran = leased(SLICES, program, *first, *second, "device=0", "cycle=1024")
    assert ran.lines == [
        "devices 2 hipSuccess",
        "malloc 2048 hipSuccess",
        "malloc 3000 hipErrorOutOfMemory",
        "device 1 hipSuccess",
        "malloc 3002 hipSuccess",
        "malloc 4000 hipSuccess",
        "malloc 3004 hipErrorOutOfMemory",
        "device 0 hipSuccess",
        "cycle 1024 hipSuccess",
        "free hipSuccess",
    ], ran.errors
    assert [ran.vram(size * MIB, SECOND) for size in (3002, 4000)] == [[0], [0]]
    assert [ran.vram(size * MIB) for size in (3000, 3004)] == [[], []]
    peaks = ran.peaks()
    assert peaks[FIRST] <= 4096
    assert peaks[SECOND] <= 8192
    assert peaks[OTHER] == 0


def test_asynchronous_memory_of_each_gpu(leased: Leased, program: str) -> None:
    """hipMallocAsync takes from the slice of the stream's GPU."""
    ran = leased(SLICES, program, "async=2048", "async=3000", "device=1", "async=3002")
    assert ran.lines[0] == "async 2048 hipSuccess", ran.errors
    assert ran.lines[1] in ("async 3000 hipErrorOutOfMemory", "async 3000 nothing")
    assert ran.lines[3] == "async 3002 hipSuccess"
    assert (ran.vram(2048 * MIB, FIRST), ran.vram(3002 * MIB, SECOND)) == ([0], [0])


def refused(ran: Ran, leased: Leased) -> bool:
    """Whether the program's last step got no memory. HIP 5.2 on several GPUs dies of it if it is managed."""
    if ran.code == 128 + signal.SIGSEGV and not leased.release.root:
        return "hsaKmtSVMSetAttr failed" in ran.errors
    return ran.lines[-1].split()[2] in ("hipErrorOutOfMemory", "hipErrorInvalidValue", "nothing")


def test_managed_memory_fits_every_gpu_of_the_lease(leased: Leased, program: str) -> None:
    """Any of them may pull it in, so it counts to each."""
    ran = leased(SLICES, program, "device=1", "managed=5000")
    assert refused(ran, leased), ran.errors
    assert 5000 * MIB not in [entry["size"] for entry in ran.logged("svm")]
    ran = leased(SLICES, program, "device=1", "managed=2048", "device=0", "malloc=3000")
    assert ran.lines[1:] == [
        "managed 2048 hipSuccess",
        "device 0 hipSuccess",
        "malloc 3000 hipErrorOutOfMemory",
    ], ran.errors


def test_memory_info_of_each_gpu(hooked: Leased, program: str) -> None:
    """Where HIP asks the kernel, it tells the remainder of each slice."""
    ran = hooked(SLICES, program, "malloc=1024", "info", "device=1", "info")
    first, second = (3008, 8110) if hooked.release.root else (64512, 65536)
    assert ran.lines[1] == f"info {first} 65536 hipSuccess", ran.errors
    assert ran.lines[3] == f"info {second} 65536 hipSuccess"


def test_each_queue_has_its_gpus_mask(leased: Leased, program: str) -> None:
    """Queues of each GPU have the CUs of the lease's slice there, also for masks of the program's own."""
    ran = leased(SLICES, program, "stream", "mask=ff00", "device=1", "stream", "mask=ff0000000000")
    assert not [line for line in ran.lines if "hipError" in line], ran.errors
    assert ran.masks(FIRST) == {CUS[FIRST], "ff00"}
    assert ran.masks(SECOND) == {CUS[SECOND], "ff0000000000"}


def test_without_the_environments_mask_the_hook_sets_each_gpus(hooked: Leased, program: str) -> None:
    """The hook knows of every queue which GPU it is on."""
    ran = hooked(SLICES, program, "stream", "device=1", "stream", before=("env", "-u", "HSA_CU_MASK"))
    assert (ran.masks(FIRST), ran.masks(SECOND)) == ({CUS[FIRST]}, {CUS[SECOND]}), ran.errors


@pytest.mark.parametrize("step", ["malloc=64", "async=64", "managed=64"])
@pytest.mark.way_out(
    "ROCR_VISIBLE_DEVICES undone, to use a GPU that is not leased",
    tier="hook",
    outcome="no memory and no queue there",
)
@pytest.mark.way_out(
    "ROCR_VISIBLE_DEVICES undone, to use a GPU that is not leased",
    tier="supervised",
    outcome="no memory there, of which a queue needs some, too",
)
def test_a_gpu_that_is_not_leased(leased: Leased, program: str, step: str) -> None:
    """A program that makes it visible gets nothing there, while its own GPUs serve it."""
    ran = leased(SLICES, program, "devices", "cycle=66", "device=2", step, before=ALL_GPUS)
    assert ran.lines[:4] == [
        "devices 3 hipSuccess",
        "cycle 66 hipSuccess",
        "free hipSuccess",
        "device 2 hipSuccess",
    ], ran.errors
    assert refused(ran, leased), ran.errors
    assert ran.peaks()[OTHER] == 0


def test_a_stream_on_a_gpu_that_is_not_leased(leased: Leased, program: str) -> None:
    """Nothing runs there."""
    ran = leased(SLICES, program, "device=2", "stream", before=ALL_GPUS)
    assert "used hipSuccess" not in ran.lines
    if leased.tier is HOOK:
        assert ran.masks(OTHER) == set()
