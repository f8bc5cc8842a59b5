"""What a supervised program gets from the driver, whatever it was built with."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from nodeagent.adapters.supervisor import Supervisor

from .conftest import GPU, KINDS, LIMIT, Lab

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


@pytest.mark.parametrize("command", [0x284B16, 0xC0304B16, 0x0028_0016, 0x0029_5416, 0xFFFF_FFFF_C028_4B16])
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


def test_a_supervisor_that_may_open_few_files_counts_all(lab: Lab, programs, built):
    """Counters of more processes than it may have files open are read one by one, none is taken for 0."""
    few = built / "few-files"
    few.write_text(f'#!/bin/sh\nulimit -n 32\nexec {built}/gpulease-supervisor "$@"\n')
    few.chmod(0o755)
    lab.supervisor = Supervisor(few, kfd=lab.fake.kfd, kfd_processes=lab.fake.proc)
    lines, _ = lab.gpu(programs("static glibc"), f"family:64:{100 * MIB}", limits={}).end()
    assert lines == [f"family={32 + 10}"]
    assert lab.fake.driver.gpus[GPU].peak == 1000 * MIB + 32 * 4096


def test_threads_never_pass_the_limit_together(lab: Lab, program):
    """Eight threads that ask at once get no more than the lease holds, and what it holds in full."""
    lines, _ = lab.gpu(program, f"threads:8:{100 * MIB}").end()
    assert lines == ["threads=10"]
    assert lab.fake.driver.gpus[4096].peak == 1000 * MIB


def request(number: int, claimed: int) -> int:
    """A request of KFD's that says its argument has *claimed* bytes."""
    return 0xC000_4B00 | number | claimed << 16


@pytest.mark.parametrize(
    ("claimed", "answer"),
    [(0, errno.EINVAL), (16, errno.EINVAL), (36, 0), (39, errno.ENOMEM), (40, 0), (41, 0), (1 << 13, 0)],
)
@pytest.mark.way_out(
    "a request that claims to be smaller than its flags", tier="supervised", outcome="read as the driver does"
)
def test_a_request_is_read_as_far_as_it_claims_to_go(lab: Lab, programs, claimed, answer):
    """A queue's memory is half its size only while the flag that says so is within the claimed bytes."""
    double = LIMIT * 3 // 2
    lines, _ = lab.gpu(programs("static musl"), f"aql:{request(0x16, claimed)}:{double}").end()
    assert lines == [f"aql={answer}"]
    reached = [entry["flags"] for entry in lab.fake.driver.log if entry["what"] == "alloc"]
    assert reached == ([] if answer else [0x88000001 if claimed >= 40 else 0])


def test_a_mask_is_moved_where_the_driver_looks_for_it(lab: Lab, programs):
    """The mask's address is cut off where the request claims to end, as the driver does."""
    lines, _ = lab.gpu(programs("static glibc"), f"mask:{0xFF}:{0x400C4B1A}").end()
    assert lines == ["mask=0000ff00"]


@pytest.mark.parametrize(("claimed", "answer"), [(0, errno.EINVAL), (31, errno.EINVAL), (32, errno.ENOMEM)])
def test_managed_memory_must_claim_its_attributes(lab: Lab, programs, claimed, answer):
    """Attributes beyond the claimed bytes are refused, since old drivers read whatever lies there."""
    lines, _ = lab.gpu(programs("static musl"), f"svm:{OVER}:{request(0x20, claimed)}").end()
    assert lines == [f"svm={answer}"]


@pytest.mark.parametrize(
    ("command", "answer"),
    [(0xC0206440, errno.ENOMEM), (0xC0186440, errno.ENOMEM), (0xC0106440, 0), (0x80206440, errno.EINVAL)],
)
def test_a_buffer_is_read_as_far_as_its_request_goes(lab: Lab, programs, command, answer):
    """Without its domains, or with nothing copied in, a buffer is not in VRAM."""
    lines, _ = lab.gpu(programs("static musl"), f"gem:{OVER}:{command}").end()
    assert lines == [f"gem={answer}"]
    assert lab.fake.driver.gpus[GPU].peak == 0


def test_managed_memory_of_a_gpu_that_is_not_leased_is_refused(lab: Lab, programs):
    """A range that a GPU of another's may reach is ENOMEM, however small."""
    render = str(lab.fake.render(129))
    words = (str(programs("static musl")), str(lab.fake.kfd), render, "4097")
    assert lab.start(*words, "svm:4096").end()[0] == [f"svm={errno.ENOMEM}"]


def test_buffers_count_in_whole_pages(lab: Lab, programs):
    """A buffer of a byte takes a page: after one that leaves less than a page there is room for none."""
    lines, _ = lab.gpu(programs("static musl"), f"gem:{LIMIT - 4095}", "gem:1").end()
    assert lines == ["gem=0", f"gem={errno.ENOMEM}"]


def test_buffers_count_after_their_process(lab: Lab, programs):
    """A buffer belongs to the open file: that a child made it and ended takes nothing off."""
    lines, _ = lab.gpu(programs("static glibc"), f"forkgem:{600 * MIB}", f"gem:{600 * MIB}").end()
    assert lines == ["forkgem=0", f"gem={errno.ENOMEM}"]


@pytest.mark.way_out("moving a buffer from system memory to VRAM", tier="supervised", outcome="refused")
def test_no_buffer_is_moved_into_vram(lab: Lab, programs):
    """A buffer that was made in system memory stays there; other placements are the driver's affair."""
    made = "gem:4096:0xc0106440"  # without its domains
    lines, _ = lab.gpu(programs("static musl"), made, "place:4", "place:6", "place:2").end()
    assert lines == ["gem=0", f"place={errno.EPERM}", f"place={errno.EPERM}", "place=0"]


@pytest.mark.parametrize("command", [0xC0104B24, 0xC0204B81], ids=["dma-buf", "IPC handle"])
@pytest.mark.way_out(
    "freeing memory that was exported", tier="supervised", outcome="charged until the command's end"
)
def test_exported_memory_counts_after_it_was_freed(lab: Lab, programs, command):
    """KFD's counter falls while the exported file keeps the memory: an exporter frees in vain."""
    allocate = f"raw:{ALLOC}:{600 * MIB}"
    steps = (allocate, "free", allocate, f"export:{command}", "free", allocate)
    lines, _ = lab.gpu(programs("static musl"), *steps).end()
    assert lines == ["raw=0", "free=0", "raw=0", "export=0", "free=0", f"raw={errno.ENOMEM}"]
    assert lab.fake.driver.gpus[GPU].peak == 600 * MIB


def test_exported_memory_counts_after_its_process(lab: Lab, programs):
    """What a process exported may live on in another: its end takes nothing off."""
    lines, _ = lab.gpu(programs("static glibc"), f"forkexport:{600 * MIB}", f"raw:{ALLOC}:{600 * MIB}").end()
    assert lines == ["forkexport=0", f"raw={errno.ENOMEM}"]


def test_memory_of_further_contexts_counts(lab: Lab, programs):
    """A process's second context is counted beside it, and both together."""
    steps = ("context", f"raw:{ALLOC}:{600 * MIB}", f"raw:{ALLOC}:{600 * MIB}", f"raw:{ALLOC}:{300 * MIB}")
    lines, _ = lab.gpu(programs("static musl"), f"raw:{ALLOC}:{100 * MIB}", *steps).end()
    assert lines == ["raw=0", "context=0", "raw=0", f"raw={errno.ENOMEM}", "raw=0"]


def test_managed_memory_counts_after_the_leader_of_its_process(lab: Lab, programs):
    """A leader that has ended shows no mappings, but its threads still have them."""
    lines, _ = lab.gpu(
        programs("static glibc"), f"svm:{600 * MIB}", "leave", f"raw:{ALLOC}:{600 * MIB}"
    ).end()
    assert lines == ["svm=0", f"raw={errno.ENOMEM}"]


def test_buffers_of_the_render_node_count(lab: Lab, programs):
    """GEM buffers are charged to the command's end, and together with KFD's memory."""
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


CREATE, UPDATE = 0xC0584B02, 0x40184B07


@pytest.mark.parametrize(
    ("level", "asked", "given"), [(0, 7, 0), (0, 15, 0), (7, 15, 7), (7, 3, 3), (11, 7, 11), (None, 15, 15)]
)
@pytest.mark.way_out(
    "a higher priority for a queue, when it is made or later",
    tier="supervised",
    outcome="rewritten: no queue is above the lease's level",
)
def test_queues_have_the_leases_priority(lab: Lab, programs, level, asked, given):
    """The kernel reads the lease's level, of a new queue and of one that is changed; a lower choice stays."""
    lab.device = replace(lab.device, queue_level=level)
    steps = (f"queue:{asked}:{CREATE}", f"queue:{asked}:{UPDATE}")
    lines, _ = lab.gpu(programs("static glibc"), *steps).end()
    assert lines == [f"queue={given}"] * 2
    told = [one for one in lab.fake.driver.log if one["what"] in ("queue", "update")]
    assert [one["priority"] for one in told] == [given, given]


@pytest.mark.parametrize("command", [0x584B02, 0x0058_5402, 0xFFFF_FFFF_C058_4B02])
def test_requests_of_odd_types_make_queues_of_the_leases_priority(lab: Lab, programs, command):
    """KFD looks at one byte of the request, and so does the filter."""
    lab.device = replace(lab.device, queue_level=0)
    lines, _ = lab.gpu(programs("static musl"), f"queue:15:{command}").end()
    assert lines == ["queue=0"]
