"""The kernel tier's own probe on a fake KFD: what it allocates there, and what the self-test makes of it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree
from nodeagent.adapters.selftest import FITS_BYTES, KFD_PROBE, LIMIT_BYTES, OVER_BYTES, SelfTest
from tests.fakekfd.driver import VRAM, Gpu
from tests.fakekfd.fuse_kfd import FakeKfd, fake_kfd, usable

pytestmark = [pytest.mark.cgroup2, pytest.mark.root]
REGION = "drm/0000:c1:00.0/vram"
GPU, MINOR = 4096, 128
# The probe opens /dev/kfd: it gets a /dev in which that is the fake's.
IN_ITS_PLACE = 'mount -t tmpfs none /dev && touch /dev/kfd && mount --bind "$0" /dev/kfd && exec "$@"'


@pytest.fixture
def fake() -> Iterator[FakeKfd]:
    """A driver for one GPU."""
    if why := usable():
        pytest.skip(why)
    with fake_kfd([Gpu(GPU, MINOR, 1 << 30, 1 << 30)]) as running:
        yield running


@dataclass
class Dmem:
    """The dmem files over the fake driver: with the effect, or without a part of it."""

    gpu: Gpu
    limits: bool = True
    charges: bool = True

    def enable(self, path: str) -> None:
        return

    def limit(self, ref: CgroupRef, region: str, limit_bytes: int) -> None:
        if self.limits:
            self.gpu.limit = limit_bytes

    def current(self, ref: CgroupRef) -> dict[str, int]:
        return {REGION: self.gpu.used if self.charges else 0}


@pytest.fixture
def tried(fake: FakeKfd, tree: CgroupTree) -> Callable[[Dmem, int], str | None]:
    """Run the self-test on a GPU id of the fake."""
    probe = ("unshare", "--mount", "sh", "-c", IN_ITS_PLACE, str(fake.kfd), *KFD_PROBE)

    def run(dmem: Dmem, gpu_id: int = GPU) -> str | None:
        return SelfTest(tree, dmem, probe).run(REGION, str(fake.render(MINOR)), gpu_id)

    return run


def asked(fake: FakeKfd) -> list[tuple[int, int]]:
    """Size and outcome of each request for VRAM."""
    log = fake.driver.snapshot()["log"]
    assert all(entry["flags"] & VRAM for entry in log)
    return [(entry["size"], entry["code"]) for entry in log]


def test_a_driver_that_charges_and_refuses_is_proved(fake: FakeKfd, tried) -> None:
    """Both allocations are made through KFD, below and over the limit; nothing of them stays."""
    assert tried(Dmem(fake.driver.gpus[GPU])) is None
    assert asked(fake) == [(FITS_BYTES, 0), (OVER_BYTES, errno.ENOMEM)]


def test_a_kernel_that_charges_nothing_is_seen(fake: FakeKfd, tried) -> None:
    """The allocation works and is charged to nobody, as on a kernel without the effect."""
    why = tried(Dmem(fake.driver.gpus[GPU], charges=False))
    assert "has the files and not the effect" in (why or "")
    assert asked(fake) == [(FITS_BYTES, 0)]


def test_a_kernel_that_limits_nothing_is_seen(fake: FakeKfd, tried) -> None:
    """What is charged and not refused is told as that."""
    why = tried(Dmem(fake.driver.gpus[GPU], limits=False))
    assert f"{OVER_BYTES} bytes were allocated under a limit of {LIMIT_BYTES}" in (why or "")


def test_a_driver_that_refuses_is_no_proof(fake: FakeKfd, tried) -> None:
    """A full card, or one that fails, is told with the driver's own reason."""
    gpu = fake.driver.gpus[GPU]
    gpu.limit = 0
    why = tried(Dmem(gpu, limits=False))
    assert "no allocation could be tried: [Errno 12] Cannot allocate memory" in (why or "")
    assert "[Errno 22]" in (tried(Dmem(gpu), GPU + 1) or "")
    assert gpu.used == 0
