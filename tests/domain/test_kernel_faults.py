"""Lines of the kernel's log that tell of trouble with a card, and those that do not."""

from __future__ import annotations

import pytest

from nodeagent.domain.kernel_faults import MOST_TEXT, Fault, KernelFault, fault_of

CARD = "0000:c1:00.0"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[gfxhub0] page fault (src_id:0 ring:24 vmid:8 pasid:32770)", Fault.PAGE_FAULT),
        ("[mmhub] no-retry page fault (src_id:0 ring:40 vmid:3 pasid:0)", Fault.PAGE_FAULT),
        ("ring gfx_0.0.0 timeout, signaled seq=10, emitted seq=12", Fault.RING_TIMEOUT),
        ("*ERROR* ring sdma0 test failed (-110)", Fault.RING_TIMEOUT),
        ("GPU reset begin!. Source:  1", Fault.RESET),
        ("GPU reset(3) succeeded!", Fault.RESET),
        ("MODE1 reset", Fault.RESET),
        ("GPU reset end with ret = -110", Fault.RESET_FAILED),
        ("GPU Recovery Failed: -19", Fault.RESET_FAILED),
        ("socket: 0, die: 0 1 uncorrectable hardware errors detected in umc block", Fault.RAS_UNCORRECTABLE),
        ("socket: 0, die: 0 3 correctable hardware errors detected in gfx block", Fault.RAS_CORRECTABLE),
        ("HWS hang detected", Fault.SCHEDULER_HANG),
        ("MES failed to respond to msg=REMOVE_QUEUE", Fault.SCHEDULER_HANG),
        ("The cp might be in an unrecoverable state due to an unsuccessful queues preemption",
         Fault.SCHEDULER_HANG),
        ("Runlist is getting oversubscribed due to too many queues. Expect reduced ROCm performance.",
         Fault.OVERSUBSCRIBED),
        ("Fence fallback timer expired on ring sdma0", Fault.FENCE),
    ],
)  # fmt: skip
def test_each_kind_is_known_by_its_text(text: str, fault: Fault) -> None:
    """A driver's words for a kind, with the card that the line names."""
    line = f"amdgpu {CARD}: amdgpu: {text}"
    assert fault_of(line) == KernelFault(fault, CARD, line)


@pytest.mark.parametrize(
    "line",
    [
        "i915 0000:00:02.0: GPU reset begin!",
        f"amdgpu {CARD}: amdgpu: SMU is initialized successfully!",
        f"amdgpu {CARD}: amdgpu: RAS: optional ras ta ucode is not available",
        "my-amdgpuish-thing: page fault",
        "",
    ],
)
def test_other_lines_are_none(line: str) -> None:
    """Other drivers' trouble, and what a healthy card says, is not ours to tell of."""
    assert fault_of(line) is None


def test_the_device_that_comes_with_a_line_counts() -> None:
    """A line without an address is of the device that the kernel adds to it; else of no card."""
    line = "[drm] amdgpu: ring comp_1.0.0 timeout"
    assert fault_of(line, CARD) == KernelFault(Fault.RING_TIMEOUT, CARD, line)
    found = fault_of(line)
    assert found is not None and found.pci is None


def test_a_line_is_bounded_and_plain() -> None:
    """Control characters are no part of what is kept, nor is a text without end."""
    found = fault_of(f"amdgpu {CARD}: page fault \x1b[2J\n" + "x" * 9999)
    assert found is not None
    assert len(found.text) == MOST_TEXT and found.text.isprintable()
