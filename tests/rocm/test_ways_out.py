"""Ways out of a lease on the fake's machine, mostly of real ROCm's own: what comes of each, by tier."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .machine import HOOK, MIB, SUPERVISED, Leased, Node, Ran, Release

pytestmark = [pytest.mark.rocm, pytest.mark.root, pytest.mark.cgroup2]
GRANT = "--device 0000:63:00.0/0 --cu 25% --vram 4G"
CUS, NEXT_CUS = "ffffff", "ffffff000000"
NO_IO_URING = 77
# $0 is a root directory whose /etc/ld.so.preload is to name the hook, as in a container that has it mounted.
PRELOADED = (
    'mount -t tmpfs none /mnt && cp -a "$0/etc/." /mnt && echo "$LD_PRELOAD" >/mnt/ld.so.preload '
    '&& mount --bind /mnt "$0/etc" && exec "$@"'
)
WITHOUT_MASK = pytest.mark.parametrize(
    "before",
    [
        ("env", "-u", "HSA_CU_MASK"),
        ("env", "HSA_CU_MASK_SKIP_INIT=1"),
        ("env", "HSA_CU_MASK=0:garbage"),
        ("env", "HSA_CU_MASK=0:200-210"),
    ],
    ids=["unset", "skipped", "garbage", "beyond"],
)
# Run "$@" while the command $1 runs, whose output is shown after its end; $0 is a directory of our own.
BESIDE = """
beside=$1; shift
mkfifo "$0/go"
eval "$beside" <"$0/go" >"$0/said" &
exec 3>"$0/go"
until grep -q stay "$0/said" || ! kill -0 $!; do sleep 0.05; done
"$@"
exec 3>&-
wait $!
cat "$0/said"
"""
GREEDY = ("devices", "malloc=5000", "stream", "device=1", "malloc=64")


@pytest.fixture(scope="session")
def ways(public: Path) -> str:
    """ways.c as an executable."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    made = public / "ways"
    subprocess.run(["gcc", "-O1", "-o", made, Path(__file__).with_name("ways.c")], check=True)
    return str(made)


@pytest.fixture(params=[HOOK, SUPERVISED], ids=lambda tier: tier.name)
def here(request: pytest.FixtureRequest, node_for: Callable[..., Node]) -> Leased:
    """Leases of each tier for programs that need no ROCm."""
    return Leased(Release(), request.param, node_for(request.param))


@WITHOUT_MASK
@pytest.mark.way_out(
    "unset HSA_CU_MASK, HSA_CU_MASK_SKIP_INIT=1, garbage in HSA_CU_MASK, under real ROCm",
    tier="mask",
    outcome="not held: ROCm sets no mask, and the program has all CUs",
)
def test_a_lost_mask_is_no_mask(masked: Leased, program: str, before: tuple[str, ...]) -> None:
    """The variable alone holds a program that leaves it as it is, and no other."""
    ran = masked(GRANT, program, "stream", before=before)
    assert ran.lines == ["stream - hipSuccess", "used hipSuccess"], ran.errors
    assert ran.masks() == {""}


def test_a_mask_that_is_skipped_still_bounds_streams(masked: Leased, program: str) -> None:
    """HSA_CU_MASK_SKIP_INIT=1 is about new queues; masks of the program's own stay within HSA_CU_MASK."""
    ran = masked(GRANT, program, "mask=ffffffffff", before=("env", "HSA_CU_MASK_SKIP_INIT=1"))
    assert {entry["mask"] for entry in ran.logged("mask")} == {CUS}, ran.errors


@WITHOUT_MASK
@pytest.mark.way_out(
    "unset HSA_CU_MASK, HSA_CU_MASK_SKIP_INIT=1, garbage in HSA_CU_MASK, under real ROCm",
    tier="hook",
    outcome="every queue has the lease's CUs, and no mask of the program's own leads out of them",
)
def test_the_hook_needs_no_variable(hooked: Leased, program: str, before: tuple[str, ...]) -> None:
    """Every queue is masked when it is made, whatever the environment says."""
    ran = hooked(GRANT, program, "stream", "mask=ffffffffff", before=before)
    assert ran.lines[:2] == ["stream - hipSuccess", "used hipSuccess"], ran.errors
    assert ran.masks() == {CUS}


@WITHOUT_MASK
@pytest.mark.way_out(
    "unset HSA_CU_MASK, HSA_CU_MASK_SKIP_INIT=1, garbage in HSA_CU_MASK, under real ROCm",
    tier="supervised",
    outcome="without the hook a queue has all CUs until a mask is set, which is moved into the lease's; "
    "VRAM is refused as ever",
)
def test_the_supervisor_masks_what_is_masked(
    supervised: Leased, program: str, before: tuple[str, ...]
) -> None:
    """It cannot mask a new queue; a mask that the program sets is the lease's."""
    ran = supervised(GRANT, program, "malloc=5000", "stream", "mask=ffffffffff", before=before)
    assert ran.lines[0] == "malloc 5000 hipErrorOutOfMemory", ran.errors
    assert ran.masks() == {"", CUS}


@pytest.mark.way_out(
    "env -i, where nothing but the environment names the hook",
    tier="mask",
    outcome="not held: all GPUs, all CUs, all VRAM",
)
def test_the_mask_goes_with_the_environment(masked: Leased, program: str) -> None:
    """Without its environment a program is not in the lease as far as ROCm can tell."""
    assert everything(masked(GRANT, program, *GREEDY, before=("env", "-i")))


@pytest.mark.way_out(
    "env -i, where nothing but the environment names the hook",
    tier="hook",
    outcome="not held: the hook is not loaded; all GPUs, all CUs, all VRAM",
)
def test_the_hook_goes_with_the_environment(hooked: Leased, program: str) -> None:
    """LD_PRELOAD is a variable like the others."""
    assert everything(hooked(GRANT, program, *GREEDY, before=("env", "-i")))


@pytest.mark.way_out(
    "env -i of real ROCm, where /etc/ld.so.preload names the hook",
    tier="hook",
    outcome="VRAM over the limit and other GPUs are refused, every queue has the lease's CUs",
)
def test_a_preload_file_is_no_variable(hooked: Leased, program: str) -> None:
    """Where the file names the hook, a program without environment has it all the same."""
    root = hooked.release.root or "/"
    before = ("unshare", "--mount", "sh", "-c", PRELOADED, root, "env", "-i")
    ran = hooked(GRANT, program, *GREEDY, before=before)
    assert ran.lines[:3] == ["devices 3 hipSuccess", "malloc 5000 hipErrorOutOfMemory", "stream - hipSuccess"]
    assert "malloc 64 hipErrorOutOfMemory" in ran.lines
    assert (ran.masks(0), ran.peaks()[1]) == ({CUS}, 0)


@pytest.mark.way_out(
    "env -i, where nothing but the environment names the hook",
    tier="supervised",
    outcome="VRAM over the limit and of other GPUs is refused; queues have all CUs",
)
def test_the_supervisor_needs_no_environment(supervised: Leased, program: str) -> None:
    """The filter is the kernel's."""
    ran = supervised(GRANT, program, *GREEDY, before=("env", "-i"))
    assert ran.lines[:3] == ["devices 3 hipSuccess", "malloc 5000 hipErrorOutOfMemory", "stream - hipSuccess"]
    assert "malloc 64 hipErrorOutOfMemory" in ran.lines
    assert (ran.masks(0), ran.peaks()[1]) == ({""}, 0)


def everything(ran: Ran) -> bool:
    """Whether a greedy program got all that it asked for."""
    assert len(ran.lines) == 6, ran.errors
    refused = [line for line in ran.lines if not line.endswith("hipSuccess")]
    return not refused and ran.masks() == {""} and ran.vram(64 * MIB, 1) == [0]


@pytest.mark.way_out(
    "io_uring",
    tier="hook",
    outcome="it has no ioctl; its command for drivers is refused: KFD has none (EOPNOTSUPP)",
)
@pytest.mark.way_out(
    "io_uring",
    tier="supervised",
    outcome="it has no ioctl; its command for drivers is refused: KFD has none (EOPNOTSUPP)",
)
def test_io_uring_reaches_no_driver(here: Leased, ways: str) -> None:
    """A file without uring_cmd in its operations, as amdkfd's kfd_fops is, takes no such command."""
    ran = here(GRANT, ways, "io_uring=16")
    if ran.code != NO_IO_URING:  # where the kernel has none for us, there is no such way
        assert ran.lines == ["io_uring 16 EOPNOTSUPP"], ran.errors
    assert ran.vram(16 * MIB) == []


@pytest.mark.way_out(
    "ptrace of another process of the lease, to make its system calls",
    tier="hook",
    outcome="not held: the call goes past the hook, as a raw system call does",
)
@pytest.mark.way_out(
    "ptrace of another process of the lease, to make its system calls",
    tier="supervised",
    outcome="refused over the limit: the call is seen as that process's",
)
def test_a_traced_process_calls_the_kernel(here: Leased, ways: str) -> None:
    """A user may trace what is the user's: the hook is inside that process, the filter is the kernel's."""
    ran = here(GRANT, ways, "syscall=5000", "ptrace=5000")
    outcome, codes = ("allocated", [0, 0]) if here.tier is HOOK else ("ENOMEM", [])
    assert ran.lines == [f"syscall 5000 {outcome}", f"ptrace 5000 {outcome}"], ran.errors
    assert ran.vram(5000 * MIB) == codes


@pytest.mark.way_out(
    "a second lease of the same user, on the same GPU",
    tier="hook",
    outcome="each is held to its own limit and its own CUs",
)
@pytest.mark.way_out(
    "a second lease of the same user, on the same GPU",
    tier="supervised",
    outcome="each is held to its own limit",
)
def test_a_second_lease_has_its_own_limit(leased: Leased, program: str, tmp_path: Path) -> None:
    """What one has left is nothing to the other, while both run."""
    words = (*leased.tier.before, *leased.release.enter, program)
    first = (*leased.take(GRANT), *words, "malloc=2048", "malloc=3000", "stream", "stay")
    second = (*leased.take(GRANT), *words, "malloc=3002", "malloc=2000", "stream")
    ran = leased.node.run("sh", "-c", BESIDE, str(tmp_path), shlex.join(first), *second)
    assert ran.lines == [
        "malloc 3002 hipSuccess",
        "malloc 2000 hipErrorOutOfMemory",
        "stream - hipSuccess",
        "used hipSuccess",
        "malloc 2048 hipSuccess",
        "malloc 3000 hipErrorOutOfMemory",
        "stream - hipSuccess",
        "used hipSuccess",
        "stay",
    ], ran.errors
    assert ran.masks() == {CUS, NEXT_CUS}
    assert 2048 + 3002 <= ran.peaks()[0] <= 2 * 4096
