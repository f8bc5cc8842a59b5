"""The KFD's calls, by number, on the fake driver's state.

Like kfd_ioctl() (drivers/gpu/drm/amd/amdkfd/kfd_chardev.c): only the call's number chooses what is done. The
size in the caller's command says how many bytes are copied in and out, shorter ones are filled up with zeros,
and the direction is the kernel's own. Numbers and structures: include/uapi/linux/kfd_ioctl.h.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.fakekfd.driver import DOORBELL, USERPTR, Driver, Process, Queue
from tests.fakekfd.fuse import Ioctl

VERSION = (1, 14)
APERTURES = (0x1000000000000, 0x10000FFFFFFFF, 0x2000000000000, 0x20000FFFFFFFF, 0x4000, (1 << 47) - 1)
DOORBELLS = 1 << 41  # offset of the doorbell pages in the device file
FIRST_OFFSET = 1 << 21
HUGE_PAGE = 2 << 20
MASK_BITS_LIMIT = 1024
ENDLESS = 0xFFFFFFFF  # milliseconds
COMPLETE, TIMED_OUT = 0, 1


class Memory:
    """A process's memory, through one of its threads. EFAULT where there is none."""

    def __init__(self, tid: int) -> None:
        try:
            self.fd = os.open(f"/proc/{tid}/mem", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise OSError(errno.EFAULT, "no memory to look at") from error

    def read(self, address: int, size: int) -> bytes:
        try:
            data = os.pread(self.fd, size, address)
        except (OSError, OverflowError) as error:
            raise OSError(errno.EFAULT, hex(address)) from error
        if len(data) != size:
            raise OSError(errno.EFAULT, hex(address))
        return data

    def write(self, address: int, data: bytes) -> None:
        try:
            os.pwrite(self.fd, data, address)
        except (OSError, OverflowError) as error:
            raise OSError(errno.EFAULT, hex(address)) from error

    def close(self) -> None:
        os.close(self.fd)


@dataclass
class Call:
    """One ioctl while it is served; *data* is the argument structure, to be changed in place."""

    process: Process
    memory: Memory
    data: bytearray
    request: Ioctl

    def get(self, layout: str, offset: int = 0) -> tuple[int, ...]:
        return struct.unpack_from("<" + layout, self.data, offset)

    def put(self, layout: str, offset: int, *values: int) -> None:
        struct.pack_into("<" + layout, self.data, offset, *values)


@dataclass
class Waiter:
    """A caller of WAIT_EVENTS; *deadline* in monotonic seconds."""

    request: Ioctl
    process: Process
    events: list[int]
    every: bool
    deadline: float | None


class Ioctls:
    """Serves the device file's calls."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.waiters: list[Waiter] = []
        self._offset = FIRST_OFFSET
        self.calls: dict[int, tuple[int, bool, Callable[[Call], None]]] = {
            0x01: (8, True, lambda call: call.put("II", 0, *VERSION)),
            0x02: (96, True, self.create_queue),
            0x03: (8, True, self.destroy_queue),
            0x04: (32, False, nothing),  # SET_MEMORY_POLICY
            0x05: (40, True, clocks),
            0x07: (24, False, self.update_queue),
            0x08: (32, True, self.create_event),
            0x09: (8, False, self.destroy_event),
            0x0A: (8, False, lambda call: self.set_event(call.process, call.get("I")[0])),
            0x0B: (8, False, self.reset_event),
            0x0C: (24, True, self.wait_events),
            0x11: (16, True, nothing),  # SET_SCRATCH_BACKING_VA
            0x12: (40, True, nothing),  # GET_TILE_CONFIG
            0x13: (24, False, nothing),  # SET_TRAP_HANDLER
            0x14: (16, True, self.apertures),
            0x15: (8, False, lambda call: void(self.driver.gpu(call.get("I", 4)[0]))),  # ACQUIRE_VM
            0x16: (40, True, self.allocate),
            0x17: (8, False, lambda call: self.driver.free(call.process, call.get("Q")[0])),
            0x18: (24, True, lambda call: call.put("I", 20, *call.get("I", 16))),  # MAP_MEMORY_TO_GPU
            0x19: (24, True, lambda call: call.put("I", 20, *call.get("I", 16))),  # UNMAP_MEMORY_FROM_GPU
            0x1A: (16, False, self.set_cu_mask),
            0x1E: (16, True, nothing),  # ALLOC_QUEUE_GWS
            0x20: (24, True, self.svm),
            0x21: (4, True, set_xnack),
            0x23: (16, True, self.available),
            0x24: (16, True, lambda call: self.driver.export(call.process, call.get("Q")[0])),
            0x81: (32, True, lambda call: self.driver.export(call.process, call.get("Q")[0])),  # IPC_EXPORT
            0x25: (16, True, nothing),  # RUNTIME_ENABLE
            0x27: (0, False, self.create_process),
        }

    def serve(self, request: Ioctl) -> None:
        """Answer *request*, or keep it until its event."""
        with self.driver.lock:
            process = self.driver.caller(request.opening, request.tid)
            number, claimed = request.cmd & 0xFF, request.cmd >> 16 & 0x3FFF
            if number not in self.calls:
                self.driver.unknown[hex(number)] = self.driver.unknown.get(hex(number), 0) + 1
                raise OSError(errno.EINVAL, f"call {number:#x}")
            size, out, handler = self.calls[number]
            memory = Memory(request.tid)
            try:
                given = memory.read(request.arg, claimed) if claimed else b""
                call = Call(process, memory, bytearray(given.ljust(size, b"\0")), request)
                handler(call)
                if out and claimed:
                    memory.write(request.arg, bytes(call.data[:claimed]))
            finally:
                memory.close()
            if not any(waiter.request.unique == request.unique for waiter in self.waiters):
                request.answer(0)

    # Memory

    def allocate(self, call: Call) -> None:
        _, size, _, offset = call.get("QQQQ")
        gpu_id, flags = call.get("II", 32)
        allocation = self.driver.allocate(call.process, gpu_id, size, flags)
        if flags & DOORBELL:
            offset = DOORBELLS
        elif not flags & USERPTR:
            offset, self._offset = self._offset, self._offset + size + -size % HUGE_PAGE
        call.put("QQ", 16, allocation.handle, offset)

    def create_process(self, call: Call) -> None:
        """A further context; the real one is then reached by a file of its own."""
        call.process.contexts += 1

    def available(self, call: Call) -> None:
        gpu = self.driver.gpu(call.get("I", 8)[0])
        call.put("Q", 0, max(0, min(gpu.limit, gpu.vram) - gpu.used))

    def svm(self, call: Call) -> None:
        start, size, op, attributes = call.get("QQII")
        if start % 4096 or not size or size % 4096:
            raise OSError(errno.EINVAL, "not whole pages")
        self.driver.note("svm", pid=call.process.pid, size=size, op=op, attributes=attributes, code=0)

    def apertures(self, call: Call) -> None:
        address, count = call.get("QI")
        gpus = list(self.driver.gpus)
        for index, gpu_id in enumerate(gpus[:count]):
            call.memory.write(address + 56 * index, struct.pack("<6QII", *APERTURES, gpu_id, 0))
        call.put("I", 8, len(gpus) if not count else min(count, len(gpus)))

    # Queues

    def create_queue(self, call: Call) -> None:
        ring, write_pointer, read_pointer, _, size, gpu_id, kind = call.get("QQQQIII")
        self.driver.gpu(gpu_id)
        number = next(call.process.queue_ids)
        queue = Queue(number, call.process.pid, gpu_id, kind, ring, size, write_pointer, read_pointer)
        call.process.queues[number] = queue
        queue.priority = _priority(call, 48)
        self.driver.note(
            "queue", pid=queue.pid, gpu_id=gpu_id, queue_id=number, kind=kind, priority=queue.priority, code=0
        )
        call.put("Q", 24, DOORBELLS + 8 * number)
        call.put("I", 52, number)

    def destroy_queue(self, call: Call) -> None:
        if call.process.queues.pop(call.get("I")[0], None) is None:
            raise OSError(errno.EINVAL, "no such queue")

    def update_queue(self, call: Call) -> None:
        queue = call.process.queues.get(call.get("I", 8)[0])
        if queue is None:
            raise OSError(errno.EINVAL, "no such queue")
        queue.priority = _priority(call, 20)
        self.driver.note("update", pid=queue.pid, queue_id=queue.queue_id, priority=queue.priority, code=0)

    def set_cu_mask(self, call: Call) -> None:
        """kfd_ioctl_set_cu_mask, pqm_update_mqd and update_cu_mask's checks, in their order."""
        number, bits, address = call.get("IIQ")
        if bits == 0 or bits % 32:
            raise OSError(errno.EINVAL, "not whole words")
        bits = min(bits, MASK_BITS_LIMIT)
        mask = int.from_bytes(call.memory.read(address, bits // 8), "little")
        queue = call.process.queues.get(number)
        code = errno.EFAULT if queue is None else 0
        if queue is not None and self.driver.gpus[queue.gpu_id].pairs and split_pair(mask, bits):
            code = errno.EINVAL
        self.driver.note(
            "mask", pid=call.process.pid, queue_id=number, bits=bits, mask=f"{mask:x}", code=code,
            gpu_id=queue.gpu_id if queue else 0,
        )  # fmt: skip
        if code or queue is None:
            raise OSError(code, "mask refused")
        queue.mask, queue.mask_bits = f"{mask:x}", bits

    # Events

    def create_event(self, call: Call) -> None:
        number = next(call.process.event_ids)
        call.process.events[number] = False
        call.put("QI", 0, 0, number)
        call.put("II", 24, number, number)

    def destroy_event(self, call: Call) -> None:
        if call.process.events.pop(call.get("I")[0], None) is None:
            raise OSError(errno.EINVAL, "no such event")

    def reset_event(self, call: Call) -> None:
        call.process.events[call.get("I")[0]] = False

    def set_event(self, process: Process, number: int) -> None:
        """Signal an event and wake who waits for it."""
        with self.driver.lock:
            process.events[number] = True
            for waiter in [one for one in self.waiters if one.process is process]:
                if self._ready(waiter):
                    self._finish(waiter, COMPLETE)

    def wait_events(self, call: Call) -> None:
        address, count, every, milliseconds = call.get("QIII")
        events = [
            struct.unpack("<I", call.memory.read(address + 48 * index + 40, 4))[0] for index in range(count)
        ]
        deadline = None if milliseconds == ENDLESS else time.monotonic() + milliseconds / 1000
        waiter = Waiter(call.request, call.process, events, bool(every), deadline)
        if self._ready(waiter):
            self._consume(waiter)
            call.put("I", 20, COMPLETE)
        elif milliseconds == 0:
            call.put("I", 20, TIMED_OUT)
        else:
            self.waiters.append(waiter)

    def tick(self) -> None:
        """End the waits whose time is over."""
        with self.driver.lock:
            now = time.monotonic()
            for waiter in list(self.waiters):
                if waiter.deadline is not None and waiter.deadline <= now:
                    self._finish(waiter, TIMED_OUT)

    def interrupted(self, unique: int) -> None:
        """A signal ends a wait, as in the kernel."""
        with self.driver.lock:
            for waiter in [one for one in self.waiters if one.request.unique == unique]:
                self.waiters.remove(waiter)
                waiter.request.answer(-errno.EINTR)

    def _ready(self, waiter: Waiter) -> bool:
        states = [waiter.process.events.get(event, False) for event in waiter.events]
        return all(states) if waiter.every else any(states)

    def _consume(self, waiter: Waiter) -> None:
        for event in waiter.events:
            waiter.process.events[event] = False

    def _finish(self, waiter: Waiter, result: int) -> None:
        self.waiters.remove(waiter)
        if result == COMPLETE:
            self._consume(waiter)
        try:
            memory = Memory(waiter.request.tid)
            memory.write(waiter.request.arg + 20, struct.pack("<I", result))
            memory.close()
        except OSError:
            pass  # it died while it waited
        waiter.request.answer(0)


def nothing(call: Call) -> None:
    """Succeeds and changes nothing that anybody could see here."""


def void(_: object) -> None:
    """For a check whose answer is not needed."""


def clocks(call: Call) -> None:
    now = time.monotonic_ns()
    call.put("QQQQ", 0, now // 10, now, now, 1_000_000_000)


def set_xnack(call: Call) -> None:
    (mode,) = call.get("i")
    if mode > 0:
        raise OSError(errno.EPERM, "no GPU here can change to it")
    call.put("i", 0, 0)


def split_pair(mask: int, bits: int) -> bool:
    """Whether one CU of a pair is in the mask without the other."""
    return any(mask >> bit & 3 in (1, 2) for bit in range(0, bits, 2))


def _priority(call: Call, at: int) -> int:
    """Of a queue; 15 is the highest (kfd_chardev.c)."""
    priority: int = call.get("I", at)[0]
    if priority > 15:
        raise OSError(errno.EINVAL, "no such priority")
    return priority
