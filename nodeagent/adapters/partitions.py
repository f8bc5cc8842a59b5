"""A card's partition modes in sysfs: read, and the compute mode written.

Files of the card's PCI device, as in drivers/gpu/drm/amd/amdgpu/amdgpu_xcp.c and amdgpu_gmc.c. A write of the
compute mode is over when it returns: KFD's nodes of the card are then gone and made anew.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from nodeagent.adapters.drm import PCI
from nodeagent.adapters.sysfs import SysTree, Unread
from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.partition import Modes

COMPUTE = "current_compute_partition"
_CAUSES = {
    errno.EINVAL: "the kernel takes no such mode here: see available_compute_partition, and the kernel's log",
    errno.EPERM: "not allowed: the card is being reset, or it is a virtual function",
    errno.EACCES: "not writable: a virtual function, or sysfs is mounted read-only",
    errno.EROFS: "not writable: sysfs is mounted read-only",
    errno.EIO: "the kernel switched and could not start KFD again on the card: see its log; reload amdgpu",
}


class Busy(OutsideFault):
    """A process has the card open, or its end is not through yet (EBUSY)."""


class PartitionFiles:
    """The cards of one sys tree. *write* puts text into a file as a write(2) does, or raises OSError."""

    def __init__(self, tree: SysTree, write: Callable[[Path, bytes], None] | None = None) -> None:
        self._tree = tree
        self._write = write or _write

    def modes(self, pci: str) -> Modes:
        """What the card at *pci* says now; what cannot be read is left out."""
        return Modes(
            compute=self._word(pci, COMPUTE),
            computes=self._words(pci, "available_compute_partition"),
            memory=self._word(pci, "current_memory_partition"),
            memories=self._words(pci, "available_memory_partition"),
            alloc=self._word(pci, "compute_partition_mem_alloc_mode"),
        )

    def compute(self, pci: str) -> str | None:
        """The compute mode alone."""
        return self._word(pci, COMPUTE)

    def switch(self, pci: str, mode: str) -> None:
        """Ask the kernel for *mode*. Raises Busy, or OutsideFault for any other no."""
        path = self._tree.root / PCI / pci / COMPUTE
        try:
            self._write(path, f"{mode}\n".encode())
        except OSError as fault:
            if fault.errno == errno.EBUSY:
                raise Busy(path, "is in use: a process has the card open, or is ending") from fault
            if cause := _CAUSES.get(fault.errno or 0):
                raise OutsideFault(path, cause) from fault
            raise outside_fault(path, fault) from fault

    def _word(self, pci: str, name: str) -> str | None:
        return next(iter(self._words(pci, name)), None)

    def _words(self, pci: str, name: str) -> tuple[str, ...]:
        text = self._tree.text(f"{PCI}/{pci}/{name}")
        return () if isinstance(text, Unread) else tuple(text.upper().replace(",", " ").split())


def _write(path: Path, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(file, content)
    finally:
        os.close(file)
