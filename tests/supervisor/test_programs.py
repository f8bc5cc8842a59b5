"""What a supervised program gets from the driver, whatever it was built with."""

from __future__ import annotations

import errno

import pytest

from .conftest import KINDS, LIMIT, Lab

pytestmark = [pytest.mark.cgroup2, pytest.mark.root]

ALLOC = 0xC0284B16
MIB = 1 << 20
OVER = LIMIT + 4096


@pytest.fixture(params=list(KINDS))
def program(request, programs):
    """The same program, static with glibc and musl, and dynamic."""
    return programs(request.param)


@pytest.mark.way_out(
    "static glibc and musl programs, raw system calls", tier="supervised", outcome="refused over the limit"
)
def test_allocations_stop_at_the_limit(lab: Lab, program):
    """What fits is the kernel's to decide, what does not is ENOMEM, and the kernel never held more."""
    lines, status = lab.gpu(program, f"raw:{ALLOC}:{600 * MIB}", f"raw:{ALLOC}:{600 * MIB}").end()
    assert lines == ["raw=0", f"raw={errno.ENOMEM}"]
    assert status == 0
    assert max(gpu.peak for gpu in lab.fake.driver.gpus.values()) == 600 * MIB


@pytest.mark.parametrize("command", [0x4B16, 0xC0304B16, 0x16, 0x0016_5416, 0xFFFF_FFFF_C028_4B16])
@pytest.mark.way_out("requests of odd sizes and types", tier="supervised", outcome="refused over the limit")
def test_only_the_number_counts(lab: Lab, programs, command):
    """KFD looks at one byte of the request, so a request of another size or type is refused all the same."""
    lines, _ = lab.gpu(programs("static musl"), f"raw:{command}:{OVER}").end()
    assert lines == [f"raw={errno.ENOMEM}"]


@pytest.mark.way_out("int 0x80, x32", tier="supervised", outcome="refused; x32 does not exist")
def test_32_bit_calls_are_seen(lab: Lab, programs):
    """int 0x80 of a 64-bit program is refused over the limit, and x32 does not exist."""
    lines, _ = lab.gpu(programs("static glibc"), f"int80:{OVER}", f"x32:{MIB}").end()
    assert lines == [f"int80={errno.ENOMEM}", f"x32={errno.ENOSYS}"]


@pytest.mark.way_out(
    "fork, setsid, double fork", tier="supervised", outcome="the filter is inherited, the limit shared"
)
def test_children_share_the_limit(lab: Lab, programs):
    """A fork child inherits the filter, and what its parent holds counts."""
    program = programs("static glibc")
    steps = (f"raw:{ALLOC}:{600 * MIB}", f"fork:{600 * MIB}", f"fork:{300 * MIB}", f"raw:{ALLOC}:{400 * MIB}")
    lines, _ = lab.gpu(program, *steps).end()
    assert lines == ["raw=0", f"fork={errno.ENOMEM}", "fork=0", "raw=0"]


def test_threads_never_pass_the_limit_together(lab: Lab, program):
    """Eight threads that ask at once get no more than the lease holds, and what it holds in full."""
    lines, _ = lab.gpu(program, f"threads:8:{100 * MIB}").end()
    assert lines == ["threads=10"]
    assert lab.fake.driver.gpus[4096].peak == 1000 * MIB


def test_buffers_of_the_render_node_count(lab: Lab, programs):
    """GEM buffers are charged until their process ends, and together with KFD's memory."""
    steps = (f"gem:{600 * MIB}", f"gem:{600 * MIB}", f"raw:{ALLOC}:{600 * MIB}", "dumb")
    lines, _ = lab.gpu(programs("static musl"), *steps).end()
    denied = errno.ENOMEM
    assert lines[1:] == [f"gem={denied}", f"raw={denied}", f"dumb={errno.EPERM}"]


def test_shared_virtual_memory_counts_while_it_is_mapped(lab: Lab, programs):
    """A range that is sent to the GPU is charged whole, once; over the limit it is refused."""
    steps = (f"svm:{700 * MIB}", f"svm:{700 * MIB}", f"raw:{ALLOC}:{400 * MIB}")
    lines, _ = lab.gpu(programs("static glibc"), *steps).end()
    assert lines[1:] == [f"svm={errno.ENOMEM}", f"raw={errno.ENOMEM}"]


@pytest.mark.parametrize(
    ("asked", "got"),
    [(0x0000FF00, "0000ff00"), (0x0F, "00000f00"), (0xFFFFFFFF, "0000ff00"), (0, "0000ff00")],
)
@pytest.mark.way_out(
    "a CU mask of the program's own",
    tier="supervised",
    outcome="moved into the lease's CUs; a queue that never sets one has all CUs",
)
def test_masks_are_moved_into_the_lease(lab: Lab, programs, asked, got):
    """The kernel reads a mask of leased CUs, as many as were asked for as far as there are, never none."""
    lines, _ = lab.gpu(programs("static glibc"), f"mask:{asked}").end()
    assert lines == [f"mask={got}"]


@pytest.mark.way_out("a GPU that is not leased, a checkpoint's restore", tier="supervised", outcome="refused")
def test_other_devices_and_ways_are_closed(lab: Lab, programs):
    """VRAM of a GPU that is not leased is refused, and so is a checkpoint's restore."""
    render = str(lab.fake.render(129))
    words = (str(programs("static musl")), str(lab.fake.kfd), render, "4097")
    lines, _ = lab.start(*words, f"raw:{ALLOC}:4096", "gem:4096", "criu").end()
    assert lines == [f"raw={errno.ENOMEM}", f"gem={errno.ENOMEM}", f"criu={errno.EPERM}"]


def test_other_files_are_left_alone(lab: Lab, programs):
    """An ioctl of the same number on another file is answered by that file."""
    lines, _ = lab.gpu(programs("static musl"), "foreign").end()
    assert lines == [f"foreign={errno.ENOTTY}"]
