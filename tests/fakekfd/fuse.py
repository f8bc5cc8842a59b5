"""The FUSE protocol by itself, as far as device files and a small sysfs need it; no library.

Structures and opcodes: include/uapi/linux/fuse.h. One thread answers what the kernel asks about files and
pages and never waits for anything; open, release and ioctl go to a second thread, because an ioctl's handler
reads the caller's memory, whose pages may be this mount's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import queue
import select
import stat
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HEADER = struct.Struct("<IIQQIIIHH")
LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE = 1, 2, 3, 4, 14, 15, 16, 17, 18
FSYNC, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR = 20, 25, 26, 27, 28, 29
INTERRUPT, DESTROY, IOCTL, BATCH_FORGET = 36, 38, 39, 42
SILENT = {FORGET, INTERRUPT, DESTROY, BATCH_FORGET}
PROTOCOL = (7, 31)
ASYNC_READ, BIG_WRITES, PARALLEL_DIROPS = 1 << 0, 1 << 5, 1 << 18
MAX_WRITE = 128 << 10
DIRECT_IO, KEEP_CACHE = 1 << 0, 1 << 1
FOREVER = 1 << 30  # seconds that the kernel may remember an attribute
MS_NOSUID, MS_NODEV, MNT_DETACH = 2, 4, 2

libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Attr:
    """What stat() shows. *mapped*: a device file, its pages are kept; else made at each read."""

    mode: int
    size: int = 4096
    mapped: bool = False


@dataclass(frozen=True)
class Ioctl:
    """One ioctl of thread *tid* on an opening; *answer* takes its result once: >= 0, or a negative errno.

    Nothing is copied for it: the buffers' sizes are the caller's claim, so handlers use the caller's memory.
    """

    unique: int
    tid: int
    opening: int
    cmd: int
    arg: int
    answer: Callable[[int], None]


class Files:
    """What a mount holds, by path relative to it ("" is its root)."""

    def attr(self, path: str) -> Attr | None:
        """None: no such file."""
        raise NotImplementedError

    def names(self, path: str) -> list[str]:
        """The entries of a directory."""
        return []

    def content(self, path: str) -> bytes:
        """The bytes of a file that is not mapped."""
        return b""

    def opened(self, path: str, tid: int) -> int:
        """Thread *tid* opens a mapped file: the number of this opening, not 0."""
        return 1

    def released(self, opening: int) -> None:
        """The last descriptor and the last mapping of an opening are gone."""

    def ioctl(self, request: Ioctl) -> None:
        """Answer now, or later from any thread."""
        request.answer(-errno.ENOTTY)

    def interrupted(self, unique: int) -> None:
        """A signal waits for the caller of an ioctl that was not answered yet."""


class Mount:
    """*files* at *where* until `close`. Root only. What is written to mapped files lies in sparse memory.

    *at_once*: the first thread does it all, which is quicker, where no caller maps the files. *owner*: a
    uid's own file system, into which nobody else may look, not even root.
    """

    def __init__(self, files: Files, where: Path, *, at_once: bool = False, owner: int | None = None) -> None:
        self.files, self.where, self.at_once = files, where, at_once
        self.paths, self.numbers = {1: ""}, {"": 1}
        self.modes: dict[str, tuple[int, int, int]] = {}  # mode, uid, gid that somebody set
        self.pages: dict[str, int] = {}
        self.tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        self.stopping = os.eventfd(0, os.EFD_CLOEXEC)
        shared = ",allow_other,default_permissions" if owner is None else ""
        ids = f"user_id={owner or 0},group_id={owner or 0}"
        options = f"fd={self.device},rootmode=40000,{ids}{shared}"
        if libc.mount(b"fakekfd", os.fsencode(where), b"fuse", MS_NOSUID | MS_NODEV, options.encode()):
            code = ctypes.get_errno()
            raise OSError(code, f"cannot mount FUSE: {os.strerror(code)}", str(where))
        self.handlers: dict[int, Callable[[str, bytes], bytes]] = {
            **dict.fromkeys((FLUSH, FSYNC, RELEASEDIR, *SILENT), lambda path, body: b""),
            INIT: self._init,
            LOOKUP: self._lookup,
            GETATTR: self._getattr,
            SETATTR: self._setattr,
            READ: self._read,
            WRITE: self._write,
            READDIR: self._directory,
            INTERRUPT: self._interrupt,
            OPENDIR: lambda path, body: bytes(16),
            STATFS: lambda path, body: bytes(80),
        }
        self.threads = [threading.Thread(target=run, daemon=True) for run in (self._serve, self._work)]
        for thread in self.threads:
            thread.start()

    def close(self) -> None:
        """Take the mount away; who still holds a file gets ENOTCONN from it."""
        libc.umount2(os.fsencode(self.where), MNT_DETACH)
        os.eventfd_write(self.stopping, 1)
        self.tasks.put(None)
        for thread in self.threads:
            thread.join()
        for fd in (self.device, self.stopping, *self.pages.values()):
            os.close(fd)

    def _work(self) -> None:
        while (task := self.tasks.get()) is not None:
            task()

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self.device, select.POLLIN)
        poll.register(self.stopping, select.POLLIN)
        while not any(fd == self.stopping for fd, _ in poll.poll()):
            try:
                request = os.read(self.device, MAX_WRITE + 8192)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):  # ENOENT: withdrawn meanwhile
                    continue
                return  # ENODEV: unmounted
            _, opcode, unique, number, _, _, tid, _, _ = HEADER.unpack_from(request)
            try:
                data = self._handle(opcode, unique, number, tid, request[HEADER.size :])
            except OSError as error:
                self._reply(unique, -(error.errno or errno.EIO))
            else:
                if data is not None and opcode not in SILENT:
                    self._reply(unique, 0, data)

    def _reply(self, unique: int, code: int, data: bytes = b"") -> None:
        with contextlib.suppress(OSError):  # ENOENT: the caller died, nobody waits
            os.write(self.device, struct.pack("<IiQ", 16 + len(data), code, unique) + data)

    def _handle(self, opcode: int, unique: int, number: int, tid: int, body: bytes) -> bytes | None:
        """The answer's data, or None where it is answered by itself."""
        path = self.paths.get(number, "")
        if opcode in (OPEN, RELEASE, IOCTL):
            if self.at_once:
                self._call(opcode, unique, path, tid, body)
            else:
                self.tasks.put(lambda: self._call(opcode, unique, path, tid, body))
            return None
        if opcode not in self.handlers:
            raise OSError(errno.ENOSYS, "not needed so far")
        return self.handlers[opcode](path, body)

    def _init(self, path: str, body: bytes) -> bytes:
        flags = ASYNC_READ | BIG_WRITES | PARALLEL_DIROPS
        return struct.pack("<4IHHII36x", *PROTOCOL, 0, flags, 16, 12, MAX_WRITE, 1)

    def _lookup(self, path: str, body: bytes) -> bytes:
        return self._entry(f"{path}/{os.fsdecode(body.rstrip(bytes(1)))}".lstrip("/"))

    def _getattr(self, path: str, body: bytes) -> bytes:
        valid, attributes = self._attributes(path)
        return struct.pack("<QII", valid, 0, 0) + attributes

    def _setattr(self, path: str, body: bytes) -> bytes:
        self._set_owner(path, body)
        return self._getattr(path, body)

    def _interrupt(self, path: str, body: bytes) -> bytes:
        (interrupted,) = struct.unpack_from("<Q", body)
        self.tasks.put(lambda: self.files.interrupted(interrupted))
        return b""

    def _read(self, path: str, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        if not self._attr(path).mapped:
            return self.files.content(path)[offset : offset + size]
        found = os.pread(self._backing(path), size, offset)
        return found + bytes(size - len(found))

    def _write(self, path: str, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        if not self._attr(path).mapped:
            raise PermissionError(errno.EACCES, "a file of the fake sysfs")
        return struct.pack("<II", os.pwrite(self._backing(path), body[40 : 40 + size], offset), 0)

    def _call(self, opcode: int, unique: int, path: str, tid: int, body: bytes) -> None:
        try:
            if opcode == OPEN:
                mapped = self._attr(path).mapped
                opening = self.files.opened(path, tid) if mapped else 0
                self._reply(unique, 0, struct.pack("<QII", opening, KEEP_CACHE if mapped else DIRECT_IO, 0))
            elif opcode == RELEASE:
                if opening := struct.unpack_from("<Q", body)[0]:
                    self.files.released(opening)
                self._reply(unique, 0)
            else:
                opening, _, cmd, arg, _, _ = struct.unpack_from("<QIIQII", body)
                self.files.ioctl(
                    Ioctl(unique, tid, opening, cmd, arg, lambda result: self._result(unique, result))
                )
        except OSError as error:
            self._reply(unique, -(error.errno or errno.EIO))

    def _result(self, unique: int, result: int) -> None:
        # No data after it, so the kernel copies nothing over what the handler wrote into the caller's memory.
        if result < 0:
            self._reply(unique, result)
        else:
            self._reply(unique, 0, struct.pack("<iIII", result, 0, 0, 0))

    def _attr(self, path: str) -> Attr:
        found = self.files.attr(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found

    def _entry(self, path: str) -> bytes:
        valid, attributes = self._attributes(path)
        number = self.numbers.setdefault(path, len(self.numbers) + 1)
        self.paths[number] = path
        return struct.pack("<QQQQII", number, 0, valid, valid, 0, 0) + attributes

    def _attributes(self, path: str) -> tuple[int, bytes]:
        attr = self._attr(path)
        number = self.numbers.setdefault(path, len(self.numbers) + 1)
        mode, uid, gid = self.modes.get(path, (attr.mode, 0, 0))
        links = 2 if stat.S_ISDIR(attr.mode) else 1
        times = (0, 0, 0, 0, 0, 0)
        packed = struct.pack("<6Q10I", number, attr.size, 0, *times, mode, links, uid, gid, 0, 4096, 0)
        return FOREVER if attr.mapped else 0, packed

    def _set_owner(self, path: str, body: bytes) -> None:
        """Chmod and chown stay; times and sizes are nobody's business."""
        (valid,) = struct.unpack_from("<I", body)
        mode, _, uid, gid = struct.unpack_from("<4I", body, 68)
        attr = self._attr(path)
        old = self.modes.get(path, (attr.mode, 0, 0))
        new_mode = stat.S_IFMT(attr.mode) | stat.S_IMODE(mode) if valid & 1 else old[0]
        self.modes[path] = (new_mode, uid if valid & 2 else old[1], gid if valid & 4 else old[2])

    def _directory(self, path: str, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        listing = b""
        for index, name in enumerate([".", "..", *sorted(self.files.names(path))]):
            raw = os.fsencode(name)
            record = struct.pack("<QQII", index + 2, index + 1, len(raw), 0) + raw
            record += bytes(-len(record) % 8)
            if index >= offset:
                if len(listing) + len(record) > size:
                    break
                listing += record
        return listing

    def _backing(self, path: str) -> int:
        if path not in self.pages:
            self.pages[path] = os.memfd_create("fakekfd", os.MFD_CLOEXEC)
        return self.pages[path]
