"""Real HIP in a container image, on the fake kernel: the slice is all that it sees, and all that it gets."""

from __future__ import annotations

import pytest

from tests.rocm.machine import MIB, Ran

from .leased import Container, Leased

pytestmark = [pytest.mark.docker, pytest.mark.hook, pytest.mark.rocm]
SLICE_MIB = 4096 - 64  # --vram 4G, without the driver's own
MASK = "ffffff"  # --cu 25%: 24 of 104, whole rows
STEPS = ("hip", "devices", "info", "malloc=2048", "info", "malloc=3000", "stream", "stream", "mask=ff")
SAID = [
    "devices 1 hipSuccess",
    f"info {SLICE_MIB} {SLICE_MIB} hipSuccess",
    "malloc 2048 hipSuccess",
    f"info {SLICE_MIB - 2048} {SLICE_MIB} hipSuccess",
    "malloc 3000 hipErrorOutOfMemory",
    *["stream - hipSuccess", "used hipSuccess"] * 2,
    "stream ff hipSuccess",
    "used hipSuccess",
]


def held(leased: Leased, lines: str) -> None:
    """What a program of these steps said, and what reached the kernel, are the slice's."""
    ran = Ran(0, lines.splitlines(), "", leased.host.kernel())
    assert ran.lines == SAID
    assert ran.vram(2048 * MIB) == [0]
    assert ran.vram(3000 * MIB) == []
    assert ran.masks() == {MASK, "ff"}


@pytest.fixture
def container(fake_leased: Leased) -> Container:
    """A container of the ROCm image that waits; what reached the kernel before is forgotten."""
    container = fake_leased.start(image="rocm")
    fake_leased.host.kernel(forget=True)
    return container


@pytest.mark.way_out(
    "HIP in a container image of `gpulease docker run`",
    tier="hook",
    outcome="refused over the limit",
)
def test_hip_in_a_container(fake_leased: Leased) -> None:
    """Memory is the slice's, total and free; too much is out of memory; each queue has the mask."""
    fake_leased.host.kernel(forget=True)
    done = fake_leased.run(STEPS, image="rocm")
    assert done.returncode == 0, done.stderr
    held(fake_leased, done.stdout)


@pytest.mark.way_out(
    "HIP under `docker exec CONTAINER env -i`",
    tier="hook",
    outcome="refused over the limit",
)
@pytest.mark.parametrize("before", [(), ("env", "-i")], ids=["as it is", "env -i"])
def test_hip_by_exec(fake_leased: Leased, container: Container, before: tuple[str, ...]) -> None:
    """The same for what is started in it later, without its environment, too."""
    held(fake_leased, fake_leased.host.said("exec", container.id, *before, *STEPS))
