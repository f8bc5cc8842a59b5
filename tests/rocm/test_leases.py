"""Real ROCm under leases of an agent that reads the fake machine as a real node.

Under the hook, and under the supervisor with nothing loaded into the program.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .machine import MIB, Leased

pytestmark = [pytest.mark.rocm, pytest.mark.root, pytest.mark.cgroup2]
GRANT = "--cu 25% --vram 4G"  # 24 of 104 CUs: whole rows; 64 MiB of the VRAM are the driver's own
CUS = "ffffff"


def test_one_gpu(leased: Leased, program: str) -> None:
    """A lease shows its own GPU alone, and every queue has the lease's CUs."""
    ran = leased(GRANT, program, "devices", "stream", "stream")
    assert ran.lines[0] == "devices 1 hipSuccess", ran.errors
    assert ran.masks() == {CUS}


def test_memory_over_the_slice(leased: Leased, program: str) -> None:
    """Over its slice a program gets hipErrorOutOfMemory, and the kernel was not even asked."""
    steps = ("malloc=2048", "malloc=3000", "async=3000", "cycle=1024", "cycle=1024")
    ran = leased(GRANT, program, *steps)
    assert ran.lines[:2] == ["malloc 2048 hipSuccess", "malloc 3000 hipErrorOutOfMemory"], ran.errors
    assert ran.lines[2] in ("async 3000 hipErrorOutOfMemory", "async 3000 nothing")
    assert ran.lines[3:] == ["cycle 1024 hipSuccess", "free hipSuccess"] * 2
    assert ran.vram(2048 * MIB) == [0]
    assert ran.vram(3000 * MIB) == []
    assert ran.peaks()[0] <= 4096


def test_asynchronous_memory(leased: Leased, program: str) -> None:
    """hipMallocAsync takes from the slice as hipMalloc does."""
    ran = leased(GRANT, program, "async=2048", "malloc=3000")
    assert ran.lines == ["async 2048 hipSuccess", "malloc 3000 hipErrorOutOfMemory"], ran.errors
    assert ran.vram(2048 * MIB) == [0]


def test_managed_memory(leased: Leased, program: str) -> None:
    """Managed memory over the slice is refused, alone or with what is allocated."""
    ran = leased(GRANT, program, "managed=5000", "managed=2048", "malloc=3000")
    assert ran.lines[0].startswith("managed 5000 hipError"), ran.errors
    assert ran.lines[1:] == ["managed 2048 hipSuccess", "malloc 3000 hipErrorOutOfMemory"]
    sizes = [entry["size"] for entry in ran.logged("svm")]
    assert 2048 * MIB in sizes
    assert 5000 * MIB not in sizes


def test_memory_info(hooked: Leased, program: str) -> None:
    """Under the hook hipMemGetInfo tells what the slice has left, where HIP asks the kernel for it."""
    ran = hooked(GRANT, program, "info", "malloc=1024", "info")
    asks = bool(hooked.release.root)  # HIP 5.2 does the sum itself, from the GPU's size
    first, last = (4032, 3008) if asks else (64 << 10, 63 << 10)
    assert ran.lines == [
        f"info {first} 65536 hipSuccess",
        "malloc 1024 hipSuccess",
        f"info {last} 65536 hipSuccess",
    ], ran.errors


SHOWN = """
shows=$1; shift
mkfifo "$0/go"
"$@" <"$0/go" >"$0/said" &
exec 3>"$0/go"
until grep -q stay "$0/said" || ! kill -0 $!; do sleep 0.05; done
"$shows" -m gpulease show "$GPULEASE_ID" --json
exec 3>&-
wait $!
"""


def test_what_a_program_counts_is_shown(hooked: Leased, program: str, tmp_path: Path) -> None:
    """While it runs, `gpulease show` tells the bytes that it counts and how often it was refused."""
    steps = (*hooked.release.enter, program, "malloc=2048", "malloc=3000", "stay")
    shell = ("sh", "-c", SHOWN, str(tmp_path), sys.executable)
    ran = hooked.node.run(*hooked.take(GRANT), *shell, *hooked.tier.before, *steps)
    shown = json.loads("\n".join(ran.lines))
    (slice_,) = shown["slices"]
    assert 2048 * MIB <= slice_["told_bytes"] <= slice_["vram_bytes"], ran.errors
    assert shown["denied"] >= 1


def test_a_narrower_stream_mask(leased: Leased, program: str) -> None:
    """A program's choice among the lease's CUs is its queue's mask."""
    ran = leased(GRANT, program, "mask=ff00")
    assert ran.lines == ["stream ff00 hipSuccess", "used hipSuccess"], ran.errors
    assert ran.masks() == {CUS, "ff00"}


@pytest.mark.parametrize("mask", ["ffffffffff", "ffffff000000"])
def test_a_wider_stream_mask(leased: Leased, program: str, mask: str) -> None:
    """A program's own mask goes no further than its lease's, also without HSA_CU_MASK."""
    for before in ((), ("env", "-u", "HSA_CU_MASK")):
        ran = leased(GRANT, program, f"mask={mask}", before=before)
        masked = {entry["mask"] for entry in ran.logged("mask")}
        assert masked == {CUS}, ran.errors


def test_the_environments_mask(masked: Leased, program: str) -> None:
    """Without hook and supervisor, HSA_CU_MASK gives queues the lease's CUs, and bounds streams' masks."""
    ran = masked(GRANT, program, "stream", "mask=ff00", "mask=ffffffffff")
    assert ran.lines[2:4] == ["stream ff00 hipSuccess", "used hipSuccess"], ran.errors
    assert ran.masks() == {CUS, "ff00"}


def test_nothing_stays(leased: Leased, program: str) -> None:
    """After the program's end the kernel counts nothing, and has no process left."""
    ran = leased(GRANT, program, "malloc=2048", "managed=512", "stream")
    assert ran.lines[0] == "malloc 2048 hipSuccess", ran.errors
    assert [gpu["used"] for gpu in ran.state["gpus"]] == [0, 0, 0]
    assert ran.state["processes"] == []


def test_a_supervised_program_has_nothing_loaded(supervised: Leased) -> None:
    """What these tests show of the supervisor is not the hook's work."""
    ran = supervised(GRANT, "/bin/cat", "/proc/self/maps")
    assert ran.lines, ran.errors
    assert not [line for line in ran.lines if "gpulease" in line]


@pytest.mark.parametrize(("level", "given"), [("low", [0, 0, 0, 0]), ("normal", [7, 7, 7, 0])])
def test_streams_have_the_leases_priority(leased: Leased, program: str, level: str, given: list[int]) -> None:
    """Plain streams get the level, HIP's high-priority ones no more, and its low-priority ones stay low."""
    steps = ("stream", "priority=-1", "priority=0", "priority=1")
    ran = leased(f"{GRANT} --queue-priority {level}", program, *steps)
    assert ran.lines[2:] == [f"priority {asked} hipSuccess" for asked in (-1, 0, 1)], ran.errors
    _, *streams = ran.priorities()  # the first queue is HIP's own
    assert streams == given


def test_a_whole_device_has_all_priorities(hooked: Leased, program: str) -> None:
    """Who shares with nobody orders its own streams; without a lease they are the same."""
    ran = hooked("--exclusive", program, "priority=-1", "priority=0", "priority=1")
    _, *streams = ran.priorities()
    assert streams == [15, 7, 0], ran.errors
