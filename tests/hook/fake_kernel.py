"""A small kernel driver for the hook's tests: files ``kfd`` and ``renderD128``... whose ioctls only count.

A FUSE file system, so that any program reaches it with any C library, or none. It keeps its own books, and
they are what the tests believe. Structures: include/uapi/linux/fuse.h and kfd_ioctl.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

NAMES = ("kfd", "renderD128", "renderD129")
GPUS = {128: 0x1000, 129: 0x2000}
LOOKUP, FORGET, GETATTR, OPEN, RELEASE, FLUSH, INIT, OPENDIR = 1, 2, 3, 14, 18, 25, 26, 27
INTERRUPT, IOCTL, BATCH_FORGET = 36, 39, 42
KFD_CREATE_QUEUE, KFD_DESTROY_QUEUE, KFD_ALLOC, KFD_FREE, KFD_MASK = 0x02, 0x03, 0x16, 0x17, 0x1A
KFD_SVM, KFD_AVAILABLE, GEM_CREATE, GEM_CLOSE = 0x20, 0x23, 0x40, 0x09
GEM_OP, CREATE_DUMB, DESTROY_DUMB = 0x50, 0xB2, 0xB4
KFD_SIZES = {0x02: 88, 0x03: 8, 0x16: 40, 0x17: 8, 0x1A: 16, 0x23: 16}
DRM_SIZES = {GEM_CREATE: 32, GEM_CLOSE: 8, GEM_OP: 16, CREATE_DUMB: 32, DESTROY_DUMB: 4}
VRAM, AQL = 1, 1 << 27
PF_EXITING = 4

_libc = ctypes.CDLL(None, use_errno=True)


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


class FakeKernel:
    """The file system, mounted at *where* until `close`."""

    def __init__(self, where: Path, vram_bytes: int = 1 << 40) -> None:
        self.where, self.vram_bytes = where, vram_bytes
        self.files: dict[int, Opened] = {}
        self.peak: Counter[int] = Counter()  # by GPU, of processes that are not dying
        self.masks: dict[int, bytes] = {}  # by queue
        self.queues: set[int] = set()
        self.refuse: set[int] = set()  # numbers of ioctls that shall fail
        self.calls: Counter[int] = Counter()
        self._next = 1
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        if _libc.mount(b"fakekernel", os.fsencode(where), b"fuse", 6, options.encode()):
            raise OSError(ctypes.get_errno(), "cannot mount FUSE", str(where))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        _libc.umount2(os.fsencode(self.where), 2)
        os.close(self._device)
        self._thread.join(1)

    def used(self, gpu: int = GPUS[128]) -> int:
        """Bytes of *gpu* in use."""
        files = list(self.files.values())
        return sum(size for one in files for at, size in list(one.buffers.values()) if at == gpu)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, 1 << 17)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue
                return
            _, opcode, unique, node, _, _, pid, _ = struct.unpack_from("<IIQQIIII", request)
            if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
                continue
            try:
                code, data = 0, self._handle(opcode, node, pid, request[40:])
            except OSError as error:
                code, data = -(error.errno or errno.EIO), b""
            with contextlib.suppress(OSError):  # the caller died meanwhile
                os.write(self._device, struct.pack("<IiQ", 16 + len(data), code, unique) + data)

    def _handle(self, opcode: int, node: int, pid: int, body: bytes) -> bytes:
        if opcode == INIT:
            return struct.pack("<4IHHIIHHI28x", 7, 31, 0, 0, 16, 12, 65536, 1, 1, 0, 0)
        if opcode == LOOKUP:
            name = body.rstrip(b"\0").decode()
            if name not in NAMES:
                raise OSError(errno.ENOENT, name)
            number = NAMES.index(name) + 2
            return struct.pack("<QQQQII", number, 0, 1, 1, 0, 0) + _attributes(number)
        if opcode == GETATTR:
            return struct.pack("<QII", 1, 0, 0) + _attributes(node)
        if opcode == OPENDIR:
            return struct.pack("<QII", 0, 0, 0)
        if opcode == OPEN:
            self._next += 1
            self.files[self._next] = Opened(NAMES[node - 2], pid)
            return struct.pack("<QII", self._next, 1, 0)
        if opcode == RELEASE:
            self.files.pop(struct.unpack_from("<Q", body)[0], None)
            return b""
        if opcode == IOCTL:
            return self._called(pid, body)
        if opcode == FLUSH:
            return b""
        raise OSError(errno.ENOSYS, "not here")

    def _called(self, pid: int, body: bytes) -> bytes:
        """An ioctl: FUSE copies the argument in and out by the direction and size bits of the command."""
        handle, _, command, _, size, _ = struct.unpack_from("<QIIQII", body)
        self.calls[command & 0xFF] += 1
        if command & 0xFF in self.refuse:
            raise OSError(errno.EINVAL, "told to")
        file, given = self.files[handle], body[32 : 32 + size]
        wanted = (KFD_SIZES if file.name == "kfd" else DRM_SIZES).get(command & 0xFF, size)
        # As KFD and DRM do: as many bytes as the command says, zeros for the rest.
        data = bytearray(given[:wanted].ljust(wanted, b"\0"))
        answer = bytes(self._ioctl(file, command & 0xFF, pid, data)) + given[wanted:]
        return struct.pack("<iIII", 0, 0, 0, 0) + (answer[:size] if command >> 31 else b"")

    def _ioctl(self, file: Opened, number: int, pid: int, data: bytearray) -> bytearray:
        if file.name == "kfd":
            return self._kfd(file, number, pid, data)
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

    def _kfd(self, file: Opened, number: int, pid: int, data: bytearray) -> bytearray:
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
            struct.pack_into("<I", data, 52, queue)
        elif number == KFD_DESTROY_QUEUE:
            self.queues.discard(struct.unpack_from("<I", data)[0])
        elif number == KFD_MASK:
            queue, bits, pointer = struct.unpack("<IIQ", data)
            with Path(f"/proc/{pid}/mem").open("rb") as memory:
                memory.seek(pointer)
                self.masks[queue] = memory.read(bits // 8)
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


def _attributes(number: int) -> bytes:
    mode = stat.S_IFDIR | 0o755 if number == 1 else stat.S_IFREG | 0o666
    return struct.pack("<6Q10I", number, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
