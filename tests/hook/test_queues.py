"""The CUs and the priority that queues get, whatever a program asks for."""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace

import pytest

from .conftest import MIB, Node

pytestmark = pytest.mark.hook
LEVEL_AT = 168 + 28  # of the first device, after the head


def mask_of(node: Node, queue: int) -> set[int]:
    """The CUs that the kernel was told for the queue."""
    bits = int.from_bytes(node.kernel.masks[queue], "little")
    return {cu for cu in range(1024) if bits >> cu & 1}


@pytest.mark.parametrize("kind", [0, 2])
@pytest.mark.way_out(
    "unset HSA_CU_MASK, HSA_CU_MASK_SKIP_INIT=1", tier="hook", outcome="every queue has the lease's mask"
)
def test_a_new_queue_has_the_leases_cus(node: Node, kind: int) -> None:
    """The mask is set before the program can use the queue, with nothing in its environment."""
    node.lease(MIB, cus=range(32, 48))
    queue = node.start()(f"queue(GPU, {kind})")
    assert mask_of(node, queue) == set(range(32, 48))


def test_copy_queues_have_no_mask(node: Node) -> None:
    """SDMA engines have no CUs."""
    node.lease(MIB, cus=range(32, 48))
    node.start()("queue(GPU, 1)")
    assert not node.kernel.masks


def test_a_whole_device_has_no_mask(node: Node) -> None:
    """Without a mask in the lease, the program's own go through as they are."""
    node.lease(MIB)
    program = node.start()
    queue = program("queue()")
    assert not node.kernel.masks
    program(f"mask({queue}, 0xFF)")
    assert mask_of(node, queue) == set(range(8))


@pytest.mark.parametrize(
    ("unit", "cus", "asked", "granted"),
    [
        (1, range(32, 48), range(4), range(32, 36)),  # the k-th asked is the k-th leased
        (1, range(32, 48), range(0, 64, 8), range(32, 40)),
        (1, range(32, 48), range(128), range(32, 48)),  # more than there are
        (1, range(32, 48), (), range(32, 48)),  # an empty mask is none
        (1, range(32, 48), range(40, 44), range(40, 44)),  # inside the lease already
        (1, range(32, 48), range(40, 56), range(32, 48)),
        (1, (3, 5, 70), (0, 1), (3, 5)),
        (2, range(32, 48), range(4), range(32, 36)),
        (2, range(32, 48), (0, 2, 4), range(32, 38)),  # half a pair asks for the pair
        (2, range(32, 48), (33,), (32, 33)),
    ],
)
@pytest.mark.way_out(
    "a CU mask of the program's own, wider or elsewhere",
    tier="hook",
    outcome="moved into the lease's CUs, never empty",
)
def test_a_programs_mask_is_moved_into_the_lease(node: Node, unit: int, cus, asked, granted) -> None:
    """A program's own mask lands within the lease's CUs, as many of them, pairs whole, never none."""
    node.lease(MIB, cus=cus, unit=unit)
    program = node.start()
    queue = program("queue()")
    program(f"mask({queue}, {sum(1 << cu for cu in asked)})")
    assert mask_of(node, queue) == set(granted)


def test_a_queue_is_masked_as_its_device(node: Node) -> None:
    """Masks name a queue only: the hook remembers the device of each, until the queue is gone."""
    node.lease(MIB, MIB, cus=range(32, 48))
    program = node.start()
    first, second = program("queue(GPU)"), program("queue(OTHER_GPU)")
    for queue in (first, second):
        program(f"mask({queue}, 3)")
        assert mask_of(node, queue) == {32, 33}


@pytest.mark.parametrize("strict", [True, False])
def test_a_mask_that_the_kernel_refuses(node: Node, strict: bool) -> None:
    """A strict lease then gets no queue; another gets it with all CUs, and stderr says so."""
    node.lease(MIB, cus=range(32, 48), strict=strict)
    node.kernel.refuse.add(0x1A)
    program = node.start()
    assert program("queue()") == ("ENOMEM" if strict else 0)
    assert node.kernel.queues == (set() if strict else {0})
    assert "the kernel refused the CU mask" in program.close()


LOW, NORMAL, HIGH = 0, 7, 11  # as KFD counts, of 0 to 15


@pytest.mark.parametrize(
    ("level", "given"),
    [
        (LOW, {7: 0, 15: 0, 0: 0}),
        (NORMAL, {7: 7, 8: 7, 15: 7, 3: 3}),  # 3: a program's own lower choice
        (HIGH, {7: 11, 15: 11, 9: 9}),  # 7 is what ROCm asks for whoever chooses none
        (None, {7: 7, 15: 15}),
    ],
)
@pytest.mark.way_out(
    "a higher priority for a queue, when it is made or later",
    tier="hook",
    outcome="no queue is above the lease's level",
)
def test_a_queue_has_the_leases_priority(node: Node, level: int | None, given: dict[int, int]) -> None:
    """Of every kind, made or changed; the program's own structure reads as the program wrote it."""
    node.lease(MIB, level=level)
    program = node.start()
    for kind, asked in itertools.product((0, 1, 2), given):
        queue = program(f"queue(GPU, {kind}, {asked})")
        assert node.kernel.priorities.pop(queue) == given[asked]
        assert program(f"update({queue}, {asked})") == asked
        assert node.kernel.priorities[queue] == given[asked]


def test_a_priority_is_that_of_the_queues_device(node: Node) -> None:
    """Changes name a queue only: the hook remembers its device, without a CU mask too."""
    node.lease(MIB, MIB, level=LOW)
    node.devices[1] = replace(node.devices[1], queue_level=HIGH)
    node.write()
    program = node.start()
    for gpu, given in (("GPU", LOW), ("OTHER_GPU", HIGH)):
        queue = program(f"queue({gpu})")
        program(f"update({queue}, 15)")
        assert node.kernel.priorities[queue] == given


def test_a_priority_that_does_not_exist_is_the_kernels_to_refuse(node: Node) -> None:
    """Above 15 a program gets EINVAL, as without a lease."""
    node.lease(MIB, level=LOW)
    program = node.start()
    assert program("queue(GPU, 2, 16)") == "EINVAL"
    queue = program("queue()")
    assert program(f"update({queue}, 16)") == "EINVAL"
    assert program(f"update({queue}, 15)") == 15
    assert node.kernel.priorities[queue] == LOW


@pytest.mark.parametrize("level", [16, 1 << 31])
def test_a_level_that_does_not_exist_is_damage(node: Node, level: int) -> None:
    """Limits with such a level grant nothing, as damaged ones do."""
    node.lease(MIB, level=LOW)
    raw = bytearray(node.fixed.read_bytes())
    struct.pack_into("<I", raw, LEVEL_AT, level + 1)
    node.fixed.write_bytes(raw)
    assert node.start()("queue()") == "ENOMEM"
