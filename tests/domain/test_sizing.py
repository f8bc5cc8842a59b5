"""What a request comes to on a device."""

from __future__ import annotations

import pytest

from nodeagent.domain.device import VRAM_GRAIN
from nodeagent.domain.errors import InvalidField
from nodeagent.domain.request import Policy, Request, SliceRequest
from nodeagent.domain.sizing import check_sizes, demand

GRANTABLE = 63 << 30


def sizes(machines, asked: SliceRequest, policy: Policy = Policy.BINPACK):
    device = machines.device("mi300x-spx")
    return demand(asked, device, device.geometry, policy, 25)


@pytest.mark.parametrize(
    ("asked", "cus", "granted", "vram_bytes", "slots"),
    [
        (SliceRequest(), 304, 304, GRANTABLE, 24),
        (SliceRequest(cu_percent=25), 76, 64, GRANTABLE // 4, 5),
        (SliceRequest(cu_percent=1), 3, 8, GRANTABLE // 100 // VRAM_GRAIN * VRAM_GRAIN, 1),
        (SliceRequest(cu_percent=100), 304, 304, GRANTABLE, 24),
        (SliceRequest(cus=152), 152, 128, GRANTABLE // 2, 10),
        (SliceRequest(vram_percent=50), 152, 128, GRANTABLE // 2, 10),
        (SliceRequest(vram_bytes=1), 1, 8, 4096, 1),
        (SliceRequest(vram_bytes=GRANTABLE // 2), 152, 128, GRANTABLE // 2, 10),
        (SliceRequest(cu_percent=25, vram_bytes=1 << 30), 76, 64, 1 << 30, 5),
        (SliceRequest(cu_percent=25, vram_bytes=(1 << 30) + 1), 76, 64, (1 << 30) + 4096, 5),
        (SliceRequest(cus=8, vram_percent=0.001), 8, 8, VRAM_GRAIN, 1),
        (SliceRequest(cu_shared=True, vram_bytes=1 << 30), 64, 64, 1 << 30, 1),
        (SliceRequest(cu_shared=True, vram_percent=50), 64, 64, GRANTABLE // 2, 5),
        (SliceRequest(cu_percent=25, queue_slots=2), 76, 64, GRANTABLE // 4, 2),
    ],
)
def test_what_is_not_said_follows_from_what_is(machines, asked, cus, granted, vram_bytes, slots) -> None:
    """VRAM alone books its share of CUs, CUs alone their share of VRAM, slots follow the CUs granted."""
    got = sizes(machines, asked)
    assert (got.cus, got.granted_cus, got.vram_bytes, got.queue_slots) == (cus, granted, vram_bytes, slots)


def test_only_a_request_for_nothing_or_the_policy_is_exclusive(machines) -> None:
    """Neither CUs nor VRAM asked: the device for oneself; all CUs asked: unmasked, not exclusive."""
    whole, all_cus = sizes(machines, SliceRequest()), sizes(machines, SliceRequest(cu_percent=100))
    assert (whole.whole, whole.exclusive) == (True, True)
    assert (all_cus.whole, all_cus.exclusive) == (True, False)
    assert sizes(machines, SliceRequest(cu_percent=25), Policy.EXCLUSIVE).exclusive


def test_shared_cus_need_a_size_of_vram() -> None:
    """A memory-only slice without a size would be bounded by nothing."""
    with pytest.raises(InvalidField) as caught:
        check_sizes(Request((SliceRequest(), SliceRequest(cu_shared=True))))
    assert caught.value.field == "slices[1].vram_bytes"
