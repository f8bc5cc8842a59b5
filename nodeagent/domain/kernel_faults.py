"""What amdgpu says in the kernel's log when something is wrong with a card.

Texts as in drivers/gpu/drm/amd (gmc page faults, amdgpu_job, amdgpu_device, amdgpu_ras, amdgpu_fence, KFD's
device queue manager, amdgpu_mes).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

MOST_TEXT = 200  # characters kept of one line
_PCI = re.compile(r"\b([0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7])\b")
_OURS = re.compile(r"(?:\[drm\b.*)?\b(?:amdgpu|amdkfd|kfd)\b")
# A program's name, which its user chose, stands first in other lines ("NAME[7]: segfault", "NAME invoked
# oom-killer"), and may read like the driver's and its words. It is no longer than this: TASK_COMM_LEN.
_LONGEST_NAME = 15
# In the driver's own lines it stands behind these words (amdgpu_vm.c, amdgpu_job.c, gmc_v9_0.c).
_NAMED = re.compile(r"(?i)\b(?:process|thread)\b.*")


class Fault(StrEnum):
    """What kind of trouble it is."""

    PAGE_FAULT = "page_fault"
    RING_TIMEOUT = "ring_timeout"
    RESET = "reset"
    RESET_FAILED = "reset_failed"
    RAS_UNCORRECTABLE = "ras_uncorrectable"
    RAS_CORRECTABLE = "ras_correctable"
    SCHEDULER_HANG = "scheduler_hang"  # of the hardware's scheduler, or MES: queues cannot be taken off
    OVERSUBSCRIBED = "oversubscribed"  # more queues or processes than the hardware runs at once
    FENCE = "fence"


# The first that fits counts.
_PATTERNS: tuple[tuple[re.Pattern[str], Fault], ...] = (
    (re.compile(r"\bpage fault\b"), Fault.PAGE_FAULT),
    (re.compile(r"\bGPU (?:reset|recovery)\b.*\b(?:failed|ret = -)|GPU Recovery Failed"), Fault.RESET_FAILED),
    (re.compile(r"\bGPU reset(?:\(\d+\))? (?:begin|succeeded)|\bMODE[12] reset\b"), Fault.RESET),
    (re.compile(r"\bring \S+ timeout\b|\bring\b.*\btest failed\b"), Fault.RING_TIMEOUT),
    (re.compile(r"(?i)\buncorrectable\b|\bpoison\b"), Fault.RAS_UNCORRECTABLE),
    (re.compile(r"(?i)(?<!un)\bcorrectable\b.*\berror"), Fault.RAS_CORRECTABLE),
    (
        re.compile(r"(?i)\bHWS hang\b|queues preemption|fence wait loop timeout|MES failed"),
        Fault.SCHEDULER_HANG,
    ),
    (re.compile(r"(?i)\boversubscribed\b"), Fault.OVERSUBSCRIBED),
    (re.compile(r"(?i)\bfence\b.*\b(?:expired|timed? ?out|fail)"), Fault.FENCE),
)


@dataclass(frozen=True, slots=True)
class KernelFault:
    """One line of the log that tells of trouble. *pci* is None where the line names no card."""

    fault: Fault
    pci: str | None
    text: str


def fault_of(line: str, device: str | None = None) -> KernelFault | None:
    """What *line* tells; *device*: the PCI address that came with it. None: nothing that matters here."""
    if not _OURS.match(line):
        return None
    said = _NAMED.sub("", line)
    fault = next((fault for pattern, fault in _PATTERNS if _said(pattern, said)), None)
    if fault is None:
        return None
    named = _PCI.search(line)
    text = "".join(one if one.isprintable() else "?" for one in line[:MOST_TEXT])
    return KernelFault(fault, device or (named[1] if named else None), text)


def _said(pattern: re.Pattern[str], line: str) -> bool:
    """Whether the kernel said it: no program's name reaches so far."""
    return any(found.end() > _LONGEST_NAME for found in pattern.finditer(line))
