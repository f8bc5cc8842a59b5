"""A small kernel driver for the hook's tests: files ``kfd`` and ``renderD128``... whose ioctls only count.

Files of FUSE, so that any program reaches them with any C library, or none. It keeps its own books, and they
are what the tests believe. Structures: include/uapi/linux/kfd_ioctl.h and drm/amdgpu_drm.h.
"""

from __future__ import annotations

import errno
import itertools
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakekfd.fuse import Attr, Files, Ioctl, Mount
from tests.fakekfd.fuse_kfd import DEVICE, DIRECTORY
from tests.fakekfd.ioctls import Memory

NAMES = ("kfd", "renderD128", "renderD129")
GPUS = {128: 0x1000, 129: 0x2000}
KFD_CREATE_QUEUE, KFD_DESTROY_QUEUE, KFD_ALLOC, KFD_FREE, KFD_MASK = 0x02, 0x03, 0x16, 0x17, 0x1A
KFD_UPDATE_QUEUE, KFD_AVAILABLE, GEM_CREATE, GEM_CLOSE = 0x07, 0x23, 0x40, 0x09
GEM_OP, CREATE_DUMB, DESTROY_DUMB = 0x50, 0xB2, 0xB4
KFD_SIZES = {0x02: 88, 0x03: 8, 0x07: 24, 0x16: 40, 0x17: 8, 0x1A: 16, 0x23: 16}
DRM_SIZES = {GEM_CREATE: 32, GEM_CLOSE: 8, GEM_OP: 16, CREATE_DUMB: 32, DESTROY_DUMB: 4}
VRAM, AQL = 1, 1 << 27
DIRECTION_IN, DIRECTION_OUT = 1 << 30, 1 << 31
PF_EXITING = 4


def is_leaving(pid: int) -> bool:
    """Whether the process has begun to exit: its memory is then the kernel's to take back."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return True
    return fields[0] in "ZX" or bool(int(fields[6]) & PF_EXITING)


@dataclass
class Opened:
    """One open file: its buffers by handle as (GPU, bytes)."""

    name: str
    pid: int
    buffers: dict[int, tuple[int, int]] = field(default_factory=dict)


class FakeKernel(Files):
    """The file system, mounted at *where* until `close`."""

    def __init__(self, where: Path, vram_bytes: int = 1 << 40) -> None:
        self.vram_bytes = vram_bytes
        self.files: dict[int, Opened] = {}
        self.peak: Counter[int] = Counter()  # by GPU, of processes that are not dying
        self.masks: dict[int, bytes] = {}  # by queue
        self.queues: set[int] = set()
        self.priorities: dict[int, int] = {}  # by queue
        self.refuse: set[int] = set()  # numbers of ioctls that shall fail
        self.calls: Counter[int] = Counter()
        self._openings = itertools.count(1)
        self._mount = Mount(self, where, at_once=True)

    def close(self) -> None:
        self._mount.close()

    def used(self, gpu: int = GPUS[128]) -> int:
        """Bytes of *gpu* in use."""
        files = list(self.files.values())
        return sum(size for one in files for at, size in list(one.buffers.values()) if at == gpu)

    def attr(self, path: str) -> Attr | None:
        return DIRECTORY if path == "" else DEVICE if path in NAMES else None

    def opened(self, path: str, tid: int) -> int:
        opening = next(self._openings)
        self.files[opening] = Opened(path, tid)
        return opening

    def released(self, opening: int) -> None:
        self.files.pop(opening, None)

    def ioctl(self, request: Ioctl) -> None:
        memory = None
        try:
            memory = Memory(request.tid)
            self._called(memory, request)
            request.answer(0)
        except OSError as error:
            request.answer(-(error.errno or errno.EIO))
        finally:
            if memory is not None:
                memory.close()

    def _called(self, memory: Memory, request: Ioctl) -> None:
        """As many bytes as the command says are copied, zeros for the rest; DRM heeds the direction."""
        number, claimed = request.cmd & 0xFF, request.cmd >> 16 & 0x3FFF
        self.calls[number] += 1
        if number in self.refuse:
            raise OSError(errno.EINVAL, "told to")
        file = self.files[request.opening]
        size = (KFD_SIZES if file.name == "kfd" else DRM_SIZES).get(number, claimed)
        inward, outward = (file.name == "kfd" or request.cmd & bit for bit in (DIRECTION_IN, DIRECTION_OUT))
        given = memory.read(request.arg, claimed) if claimed and inward else b""
        answer = self._ioctl(file, number, memory, bytearray(given[:size].ljust(size, b"\0")))
        if claimed and outward:
            memory.write(request.arg, bytes(answer[:claimed]))

    def _ioctl(self, file: Opened, number: int, memory: Memory, data: bytearray) -> bytearray:
        if file.name == "kfd":
            return self._kfd(file, number, memory, data)
        gpu = GPUS[int(file.name.removeprefix("renderD"))]
        if number == GEM_CREATE:
            size, _, domains, _ = struct.unpack("<4Q", data)
            handle = next(n for n in range(1, 1 << 20) if n not in file.buffers)
            self._take(file, handle, gpu, size if domains & 4 else 0)
            struct.pack_into("<Q", data, 0, handle)
        elif number == CREATE_DUMB:
            height, width, bits = struct.unpack_from("<III", data)
            size = (width + 63) // 64 * 64 * bits // 8 * height  # lines of whole 64 pixels, as amdgpu's
            handle = next(n for n in range(1, 1 << 20) if n not in file.buffers)
            self._take(file, handle, gpu, (size + 4095) // 4096 * 4096)
            struct.pack_into("<I", data, 16, handle)
        elif number in (GEM_CLOSE, DESTROY_DUMB):
            _give(file, struct.unpack_from("<I", data)[0])
        return data

    def _kfd(self, file: Opened, number: int, memory: Memory, data: bytearray) -> bytearray:
        if number == KFD_ALLOC:
            _, size, _, _, gpu, flags = struct.unpack("<4Q2I", data)
            handle = next(n for n in range(1, 1 << 20) if n not in file.buffers)  # the lowest, as idr does
            self._take(file, handle, gpu, (size // 2 if flags & AQL else size) if flags & VRAM else 0)
            struct.pack_into("<Q", data, 16, handle)
        elif number == KFD_FREE:
            _give(file, struct.unpack_from("<Q", data)[0])
        elif number == KFD_AVAILABLE:
            gpu = struct.unpack_from("<I", data, 8)[0]
            struct.pack_into("<Q", data, 0, self.vram_bytes - self.used(gpu))
        elif number == KFD_CREATE_QUEUE:
            queue = next(n for n in range(1 << 10) if n not in self.queues)
            self.queues.add(queue)
            self.priorities[queue] = _priority(data, 48)
            struct.pack_into("<I", data, 52, queue)
        elif number == KFD_DESTROY_QUEUE:
            self.queues.discard(struct.unpack_from("<I", data)[0])
        elif number == KFD_UPDATE_QUEUE:
            self.priorities[struct.unpack_from("<I", data, 8)[0]] = _priority(data, 20)
        elif number == KFD_MASK:
            queue, bits, pointer = struct.unpack("<IIQ", data)
            self.masks[queue] = memory.read(pointer, bits // 8)
        return data

    def _take(self, file: Opened, handle: int, gpu: int, size: int) -> None:
        if self.used(gpu) + size > self.vram_bytes:
            raise OSError(errno.ENOMEM, "the card is full")
        file.buffers[handle] = (gpu, size)
        living = [one for one in list(self.files.values()) if one is file or not is_leaving(one.pid)]
        in_use = sum(size for one in living for at, size in list(one.buffers.values()) if at == gpu)
        self.peak[gpu] = max(self.peak[gpu], in_use)


def _give(file: Opened, handle: int) -> None:
    if file.buffers.pop(handle, None) is None:
        raise OSError(errno.EINVAL, "no such handle")


def _priority(data: bytearray, at: int) -> int:
    """As kfd_chardev.c has it: 15 is the highest."""
    (priority,) = struct.unpack_from("<I", data, at)
    if priority > 15:
        raise OSError(errno.EINVAL, "no such priority")
    return priority
