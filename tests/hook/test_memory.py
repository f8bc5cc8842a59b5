"""What is counted, what is refused, and what programs are told of it."""

from __future__ import annotations

import pytest

from .conftest import MIB, Node

pytestmark = pytest.mark.hook

OTHER_GPU = 0x2000


def test_the_limit_is_the_leases(node: Node) -> None:
    """Over the limit a program gets ENOMEM, and the kernel is not even asked."""
    node.lease(10 * MIB)
    program = node.start()
    assert program("alloc(6 << 20)") == 1
    assert program("alloc(6 << 20)") == "ENOMEM"
    assert program("alloc(4 << 20)") == 2
    assert node.kernel.used() == node.charged() == 10 * MIB
    assert node.denied() == 1


def test_what_is_freed_may_be_taken_again(node: Node) -> None:
    """Freeing credits what the allocation charged, and a failed free credits nothing."""
    node.lease(10 * MIB)
    program = node.start()
    first = program("alloc(10 << 20)")
    assert program("free(99)") == "EINVAL"
    assert program("alloc(4096)") == "ENOMEM"
    program(f"free({first})")
    assert program(f"free({first})") == "EINVAL"
    assert node.charged() == 0
    assert program("alloc(10 << 20)") == 1


def test_processes_of_a_lease_share_its_limit(node: Node) -> None:
    """What one process has, another cannot take; what it leaves at its end, another can."""
    node.lease(10 * MIB)
    one, other = node.start(), node.start()
    one("alloc(7 << 20)")
    assert other("alloc(4 << 20)") == "ENOMEM"
    assert other("alloc(3 << 20)") == 1
    one.close()
    assert other("alloc(7 << 20)") == 2
    assert node.charged() == 10 * MIB


def test_each_device_has_its_own_limit(node: Node) -> None:
    """A full slice of one device leaves that of the other alone."""
    node.lease(4 * MIB, 8 * MIB)
    program = node.start()
    assert program("alloc(4 << 20)") == 1
    assert program("alloc(4096)") == "ENOMEM"
    assert program("alloc(8 << 20, OTHER_GPU)") == 2
    assert program("alloc(4096, OTHER_GPU)") == "ENOMEM"
    assert [node.charged(0), node.charged(1)] == [4 * MIB, 8 * MIB]


def test_a_queues_ring_counts_at_its_real_size(node: Node) -> None:
    """AQL queue memory is mapped twice: half of what is asked is charged."""
    node.lease(10 * MIB)
    program = node.start()
    program("alloc(8 << 20, GPU, VRAM | AQL)")
    assert node.charged() == node.kernel.used() == 4 * MIB


@pytest.mark.parametrize("flags", [2, 4, 8])
def test_other_memory_is_not_counted(node: Node, flags: int) -> None:
    """GTT, user memory and doorbells are no VRAM."""
    node.lease(1 * MIB)
    assert node.start()(f"alloc(1 << 30, GPU, {flags})") == 1
    assert node.charged() == 0


@pytest.mark.parametrize("command", [0xC0304B16, 0xC0285A16, 0xFFFFFFFFC0284B16, 0xC0280016])
@pytest.mark.way_out("requests of odd sizes and types", tier="hook", outcome="refused over the limit")
def test_only_the_number_matters(node: Node, command: int) -> None:
    """Size and direction bits are the caller's; on /dev/kfd the type byte is, too, as the kernel sees it."""
    node.lease(1 * MIB)
    assert node.start()(f"alloc(2 << 20, GPU, VRAM, {command})") == "ENOMEM"
    assert node.kernel.calls[0x16] == 0


@pytest.mark.parametrize("command", [0xC0205A40, 0xC0204B40, 0xC0300040, 0xFFFFFFFFC0206440])
def test_only_the_number_matters_to_old_drm(node: Node, command: int) -> None:
    """Before Linux 5.14 DRM, too, took any type for its own."""
    node.lease(1 * MIB)
    data = "struct.pack('<4Q', 2 << 20, 0, 4, 0) + bytes(16)"
    program = node.start()
    assert program(f"ioctl(opened('dri/renderD128'), {command}, {data}).hex()") == "ENOMEM"
    assert node.kernel.calls[0x40] == 0


@pytest.mark.way_out(
    "a request that leaves out the end of its argument, so that the kernel sees other flags",
    tier="hook",
    outcome="refused",
)
def test_a_request_that_cuts_its_argument_is_refused(node: Node) -> None:
    """KFD takes for zero what the size leaves out, so the hook would see other flags and types."""
    node.lease(10 * MIB, cus=range(8))
    program = node.start()
    assert program("alloc(16 << 20, GPU, VRAM | AQL, 0xC0274B16)") == "EINVAL"
    assert program("alloc(4096, GPU, VRAM, 0x4B16)") == "EINVAL"
    data = "bytes(36) + struct.pack('<II', GPU, 1) + bytes(44)"
    assert program(f"ioctl(opened('kfd'), 0xC0284B02, {data}).hex()") == "EINVAL"
    assert (node.kernel.used(), node.kernel.queues) == (0, set())


def test_a_buffers_number_is_the_kernels(node: Node) -> None:
    """A GEM request that does not take the number back would have the size's low bits taken for it."""
    node.lease(10 * MIB)
    program = node.start()
    data = "struct.pack('<4Q', 4 << 20, 0, 4, 0)"
    assert program(f"ioctl(opened('dri/renderD128'), 0x40206440, {data}).hex()") == "EINVAL"
    assert program(f"ioctl(opened('dri/renderD128'), 0xC0106440, {data}).hex()") == "EINVAL"
    assert node.charged() == node.kernel.used() == 0


def test_pictures_are_counted(node: Node) -> None:
    """A dumb buffer is VRAM, too: charged for lines of whole 256 pixels, credited when it is destroyed."""
    node.lease(10 * MIB)
    program = node.start()
    picture = "ioctl(opened('dri/renderD128'), 0xC02064B2, struct.pack('<6IQ', {}, 1000, 32, 0, 0, 0, 0))[16]"
    assert program(picture.format(1024)) == 1
    assert node.charged() == 4 * MIB >= node.kernel.used() > 3 * MIB
    assert program(picture.format(2048)) == program(picture.format(2**32 - 1)) == "ENOMEM"
    program("ioctl(opened('dri/renderD128'), 0xC00464B4, struct.pack('<I', 1)).hex()")
    assert node.charged() == node.kernel.used() == 0


@pytest.mark.way_out("a GTT buffer that is moved to VRAM", tier="hook", outcome="not permitted")
def test_a_buffer_that_was_not_charged_stays_out_of_vram(node: Node) -> None:
    """Setting VRAM as the place of a GTT buffer is refused; of one in VRAM, and other places, it is not."""
    node.lease(10 * MIB)
    program = node.start()
    charged, other = program("gem(4096)"), program("gem(1 << 30, domains=2)")
    place = "ioctl(opened('dri/renderD128'), 0xC0106450, struct.pack('<IIQ', {}, 1, {})).hex()"
    assert program(place.format(other, 4)) == "EPERM"
    assert program(place.format(other, 2)) != "EPERM"
    assert program(place.format(charged, 4)) != "EPERM"


@pytest.mark.way_out(
    "a second KFD context, whose numbers are the first one's again", tier="hook", outcome="refused"
)
def test_there_is_one_context(node: Node) -> None:
    """AMDKFD_IOC_CREATE_PROCESS is answered as kernels before it did."""
    node.lease(10 * MIB)
    assert node.start()("ioctl(opened('kfd'), 0x4B27, bytes(8)).hex()") == "EINVAL"
    assert node.kernel.calls[0x27] == 0


def test_buffers_of_the_render_node_count(node: Node) -> None:
    """GEM buffers in VRAM are charged to the device of the node that is open; others are not."""
    node.lease(4 * MIB, 8 * MIB)
    program = node.start()
    assert program("gem(3 << 20)") == 1
    assert program("gem(2 << 20)") == "ENOMEM"
    assert program("gem(2 << 20, domains=2)") == 2
    assert program("gem(8 << 20, node='dri/renderD129')") == 1
    assert [node.charged(0), node.charged(1)] == [3 * MIB, 8 * MIB]
    program("gem_close(1)")
    assert node.charged() == 0


def test_buffers_of_a_closed_render_node_are_given_back(node: Node) -> None:
    """Closing the file frees its buffers without a call: at the limit they are credited."""
    node.lease(4 * MIB)
    program = node.start()
    program("gem(4 << 20)")
    program("os.close(files.pop('dri/renderD128'))")
    assert program("alloc(4 << 20)") == 1
    assert node.kernel.used() == node.charged() == 4 * MIB


def test_a_failed_allocation_is_credited(node: Node) -> None:
    """When the card itself is full, nothing stays charged."""
    node.lease(10 * MIB)
    node.kernel.vram_bytes = 4 * MIB
    program = node.start()
    assert program("alloc(6 << 20)") == "ENOMEM"
    assert program("gem(6 << 20)") == "ENOMEM"
    assert node.charged() == 0


def test_available_memory_is_the_slices_remainder(node: Node) -> None:
    """Programs are told what their slice has left, or what the card has if that is less."""
    node.lease(10 * MIB)
    program = node.start()
    assert program("available()") == 10 * MIB
    program("alloc(4 << 20)")
    assert program("available()") == 6 * MIB
    node.kernel.vram_bytes = 5 * MIB
    assert program("available()") == 1 * MIB


@pytest.mark.way_out("KFD calls for a GPU that is not leased", tier="hook", outcome="refused")
def test_a_gpu_that_is_not_leased_gives_nothing(node: Node) -> None:
    """It has no VRAM, no queue and no access to managed memory for the lease, and the kernel is not asked."""
    node.lease(10 * MIB)
    program = node.start()
    assert program("available(OTHER_GPU)") == 0
    assert program("alloc(4096, OTHER_GPU)") == program("queue(OTHER_GPU)") == "ENOMEM"
    at = program("managed(1 << 20)")
    for kind in (0, 1, 2, 3):
        assert program(f"svm({at}, 1 << 20, (2, GPU), ({kind}, OTHER_GPU))") == "ENOMEM"
    assert program(f"svm({at}, 1 << 20, (0, 0xFFFFFFFF), (4, OTHER_GPU))") is None
    assert node.kernel.calls.keys() <= {0x23, 0x20}
    assert node.kernel.calls[0x20] == 1


def test_absurd_sizes_do_not_wrap(node: Node) -> None:
    """A size near 2^64 is refused, and leaves the books as they were."""
    node.lease(10 * MIB)
    program = node.start()
    program("alloc(4 << 20)")
    for size in ("2**64 - 1", "2**64 - (4 << 20)", "2**63"):
        assert program(f"alloc({size})") == "ENOMEM"
    assert node.charged() == 4 * MIB


def test_managed_memory_is_charged_once(node: Node) -> None:
    """A managed range counts whole to the device its attributes name, and once however often it is set."""
    node.lease(10 * MIB, 10 * MIB)
    program = node.start()
    at = program("managed(4 << 20)")
    program(f"svm({at}, 4 << 20, (2, GPU), (5, 1))")
    program(f"svm({at}, 4 << 20, (1, GPU))")
    program(f"svm({at}, 2 << 20, (1, 0))")
    assert [node.charged(0), node.charged(1)] == [4 * MIB, 0]
    program(f"svm({at} + (2 << 20), 2 << 20, (1, OTHER_GPU))")
    assert [node.charged(0), node.charged(1)] == [4 * MIB, 2 * MIB]


def test_managed_memory_that_names_no_device_counts_to_each(node: Node) -> None:
    """Any GPU of the lease may pull it in."""
    node.lease(10 * MIB, 10 * MIB)
    program = node.start()
    at = program("managed(4 << 20)")
    program(f"svm({at}, 4 << 20, (0, 0))")
    assert [node.charged(0), node.charged(1)] == [4 * MIB, 4 * MIB]


def test_overlapping_managed_ranges_merge(node: Node) -> None:
    """Only what is new of a range is charged."""
    node.lease(64 * MIB)
    program = node.start()
    at = program("managed(16 << 20)")
    for start, size in ((0, 2), (4, 2), (1, 4), (8, 8), (0, 16)):
        program(f"svm({at} + ({start} << 20), {size} << 20, (1, GPU))")
    assert node.charged() == 16 * MIB


def test_managed_memory_is_bounded(node: Node) -> None:
    """A managed range over the limit is refused, and the kernel is not asked."""
    node.lease(10 * MIB)
    program = node.start()
    at = program("managed(16 << 20)")
    assert program(f"svm({at}, 16 << 20, (1, GPU))") == "ENOMEM"
    assert node.kernel.calls[0x20] == node.charged() == 0


def test_unmapped_managed_memory_is_given_back_at_the_limit(node: Node) -> None:
    """What the program unmapped, whole or in part, is credited when the limit is met."""
    node.lease(10 * MIB)
    program = node.start()
    at = program("managed(8 << 20)")
    program(f"svm({at}, 8 << 20, (1, GPU))")
    program(f"unmap({at} + (2 << 20), 5 << 20)")
    assert program("alloc(8 << 20)") == "ENOMEM"
    # Of the 7 MiB free now, the program's own next mapping may come to lie where it unmapped these.
    assert program("alloc(6 << 20)") == 1
    assert 9 * MIB <= node.charged() <= 10 * MIB


def test_a_refused_managed_range_is_credited(node: Node) -> None:
    """When the kernel refuses the attributes, nothing stays charged."""
    node.lease(10 * MIB)
    node.kernel.refuse.add(0x20)
    program = node.start()
    at = program("managed(4 << 20)")
    assert program(f"svm({at}, 4 << 20, (1, GPU))") == "EINVAL"
    assert node.charged() == 0


def test_only_attributes_that_are_there_are_read(node: Node) -> None:
    """A count of attributes beyond the request's size neither ends the program nor names devices."""
    node.lease(10 * MIB)
    program = node.start()
    at = program("managed(4 << 20)")
    data = f"struct.pack('<QQII', {at}, 4 << 20, 0, 2**32 - 1)"
    program(f"ioctl(opened('kfd'), 0xC0184B20, {data}).hex()")
    assert node.charged() == 4 * MIB
