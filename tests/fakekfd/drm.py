"""The render node's calls that ROCm and buffer-object programs make (drm_ioctl, amdgpu_drv.c, amdgpu_kms.c).

Unlike the KFD's, a call of another type than 'd' is refused; its size is the caller's claim here, too, and
nothing is copied in unless its direction says so.
Structures: include/uapi/drm/drm.h and amdgpu_drm.h.
"""

from __future__ import annotations

import errno
import itertools
import struct
from dataclasses import dataclass

from tests.fakekfd.driver import PAGE, VRAM, Driver, group_of
from tests.fakekfd.fuse import Ioctl
from tests.fakekfd.ioctls import Memory

TYPE = ord("d")
VERSION, GET_CLIENT, GEM_CLOSE, GEM_CREATE, INFO, GEM_OP = 0x00, 0x05, 0x09, 0x40, 0x45, 0x50
DIRECTION_IN = 1 << 30
DOMAIN_VRAM = 4
NAMES = ((16, b"amdgpu"), (32, b"20150101"), (48, b"AMD GPU"))
ACCEL_WORKING, VRAM_USAGE, VRAM_GTT, DEVICE_INFO, MEMORY = 0x00, 0x10, 0x14, 0x16, 0x19
FAMILY_AI = 141


@dataclass
class Buffer:
    """A buffer object of an opening."""

    opening: int
    gpu_id: int
    size: int


class RenderNodes:
    """Serves the calls on every render node; buffers go with the opening that made them."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.nodes: dict[int, int] = {}  # opening -> gpu_id
        self.buffers: dict[tuple[int, int], Buffer] = {}
        self._openings = itertools.count(1 << 32)  # apart from the KFD's
        self._handles = itertools.count(1)

    def open(self, gpu_id: int) -> int:
        opening = next(self._openings)
        self.nodes[opening] = gpu_id
        return opening

    def release(self, opening: int) -> None:
        with self.driver.lock:
            for key in [key for key in self.buffers if key[0] == opening]:
                self._free(key)
            self.nodes.pop(opening, None)

    def serve(self, request: Ioctl) -> None:
        """Answer *request*."""
        if request.cmd >> 8 & 0xFF != TYPE:
            raise OSError(errno.ENOTTY, "not a call of the DRM")
        number = request.cmd & 0xFF
        handlers = {
            VERSION: self._version,
            GET_CLIENT: lambda memory, request: memory.write(
                request.arg, struct.pack("<iiQQQQ", 0, 1, 0, 0, 0, 0)
            ),
            GEM_CREATE: self._create,
            GEM_CLOSE: self._close,
            GEM_OP: self._operate,
            INFO: self._info,
        }
        if number not in handlers:
            name = f"drm {number:#x}"
            self.driver.unknown[name] = self.driver.unknown.get(name, 0) + 1
            raise OSError(errno.EINVAL, name)
        memory = Memory(request.tid)
        try:
            with self.driver.lock:
                handlers[number](memory, request)
        finally:
            memory.close()
        request.answer(0)

    def _version(self, memory: Memory, request: Ioctl) -> None:
        for offset, text in NAMES:
            size, address = struct.unpack("<QQ", memory.read(request.arg + offset, 16))
            if size and address:
                memory.write(address, text[:size])
            memory.write(request.arg + offset, struct.pack("<Q", len(text)))
        memory.write(request.arg, struct.pack("<3i", 3, 61, 0))

    def _create(self, memory: Memory, request: Ioctl) -> None:
        size, _, domains, _ = struct.unpack_from("<QQQQ", copied_in(memory, request, 32))
        if not size:
            raise OSError(errno.EINVAL, "no bytes")
        size += -size % PAGE
        gpu_id = self.nodes[request.opening]
        if domains & DOMAIN_VRAM:
            self.driver.charge(group_of(request.tid), gpu_id, size, VRAM)
        handle = next(self._handles)
        charged = size if domains & DOMAIN_VRAM else 0
        self.buffers[request.opening, handle] = Buffer(request.opening, gpu_id, charged)
        memory.write(request.arg, struct.pack("<II", handle, 0))

    def _operate(self, memory: Memory, request: Ioctl) -> None:
        """SET_PLACEMENT: the driver moves the buffer when it is used next, this one at once."""
        handle, operation, domains = struct.unpack_from("<IIQ", copied_in(memory, request, 16))
        buffer = self.buffers.get((request.opening, handle))
        if buffer is None or operation != 1:
            raise OSError(
                errno.ENOENT if buffer is None else errno.EINVAL, f"operation {operation} on {handle}"
            )
        if domains & DOMAIN_VRAM:
            self.driver.charge(group_of(request.tid), buffer.gpu_id, PAGE, VRAM)

    def _close(self, memory: Memory, request: Ioctl) -> None:
        (handle,) = struct.unpack("<I", memory.read(request.arg, 4))
        if (request.opening, handle) not in self.buffers:
            raise OSError(errno.EINVAL, f"no buffer {handle}")
        self._free((request.opening, handle))

    def _free(self, key: tuple[int, int]) -> None:
        buffer = self.buffers.pop(key)
        self.driver.gpus[buffer.gpu_id].used -= buffer.size

    def _info(self, memory: Memory, request: Ioctl) -> None:
        address, size, query = struct.unpack("<QII", memory.read(request.arg, 16))
        gpu = self.driver.gpus[self.nodes[request.opening]]
        answers = {
            ACCEL_WORKING: struct.pack("<I", 1),
            VRAM_USAGE: struct.pack("<Q", gpu.used),
            VRAM_GTT: struct.pack("<QQQ", gpu.vram, gpu.vram, 16 << 30),
            DEVICE_INFO: struct.pack("<5I", 29711, 0, 0, 2, FAMILY_AI),
            MEMORY: struct.pack("<4Q", gpu.vram, gpu.vram - gpu.used, gpu.used, gpu.vram) * 2 + bytes(32),
        }
        answer = answers.get(query, b"").ljust(size, b"\0")[:size]
        memory.write(address, answer)


def copied_in(memory: Memory, request: Ioctl, size: int) -> bytes:
    """The argument structure of *size* bytes as drm_ioctl() has it: what was not copied is zeros."""
    claimed = request.cmd >> 16 & 0x3FFF if request.cmd & DIRECTION_IN else 0
    return (memory.read(request.arg, claimed) if claimed else b"").ljust(size, b"\0")
