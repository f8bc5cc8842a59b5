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


@pytest.mark.parametrize(
    "line",
    [
        "kfd poison[4242]: segfault at 0 ip 0000 sp 0000 error 4 in a[55+1]",
        "amdgpu: poison[4242]: segfault at 0 ip 0000 sp 0000 error 4 in a[55+1]",
        "amdgpu:  poison invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=0",
        "[drm]kfd poison: page allocation failure: order:0, mode:0x0",
        "traps: kfd poison[4242] trap invalid opcode ip:55 sp:7 error:0 in a[55+1]",
        "process '/tmp/amdgpu uncorrectable' started with executable stack",
        f"amdgpu {CARD}: amdgpu:  Process poison pid 4242 thread uncorrectable pid 4242",
        f"amdgpu {CARD}: amdgpu: Process information: process MODE1 reset pid 44 thread a pid 44",
        f"amdgpu {CARD}: amdgpu:  in process page fault pid 7 thread ring a timeout pid 7",
    ],
)
def test_no_program_is_called_a_fault(line: str) -> None:
    """What a user calls its program is no word of the driver's, wherever the kernel writes it."""
    assert fault_of(line) is None


def test_a_programs_name_hides_no_fault() -> None:
    """What the driver said before it names the program counts, and the name is kept for who reads it."""
    line = f"amdgpu {CARD}: amdgpu: [gfxhub] page fault (vmid:8, for process poison pid 7 thread a pid 7)"
    assert fault_of(line) == KernelFault(Fault.PAGE_FAULT, CARD, line)
    line = "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1"
    assert fault_of(line) == KernelFault(Fault.RING_TIMEOUT, None, line)


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
