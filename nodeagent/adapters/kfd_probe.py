"""One VRAM allocation by the way that ROCm's are made, in a process of its own: `python -m` this.

Arguments: render node, KFD's gpu_id, bytes. Says ``held`` once the memory is there, and keeps it until its
stdin ends; else says why not on stderr and ends with 1. The agent itself never opens /dev/kfd: its process
would be on the device.

Numbers from include/uapi/linux/kfd_ioctl.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import sys

_ACQUIRE_VM = 0x4008_4B15  # _IOW('K', 0x15, 8): u32 drm_fd, u32 gpu_id
_ALLOC_MEMORY_OF_GPU = 0xC028_4B16  # _IOWR('K', 0x16, 40): u64 va, size, handle, offset; u32 gpu_id, flags
_VRAM, _NO_SUBSTITUTE, _WRITABLE = 1 << 0, 1 << 28, 1 << 31


def hold(render_node: str, gpu_id: int, size: int) -> mmap.mmap:
    """Allocate *size* bytes of VRAM at an address of our own; it is held as long as the process lives."""
    kfd = os.open("/dev/kfd", os.O_RDWR | os.O_CLOEXEC)
    render = os.open(render_node, os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(kfd, _ACQUIRE_VM, struct.pack("=II", render, gpu_id))
    # The GPU sees the process' own addresses: a range that nothing else is at, and that nobody touches.
    range_ = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(range_))
    flags = _VRAM | _NO_SUBSTITUTE | _WRITABLE
    fcntl.ioctl(kfd, _ALLOC_MEMORY_OF_GPU, struct.pack("=QQQQII", address, size, 0, 0, gpu_id, flags))
    return range_


def main(arguments: list[str]) -> int:
    """Hold as the command line says, until stdin ends."""
    render_node, gpu_id, size = arguments
    try:
        held = hold(render_node, int(gpu_id), int(size))
    except OSError as fault:
        print(fault, file=sys.stderr)
        return 1
    print("held", flush=True)
    sys.stdin.read()
    del held
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
