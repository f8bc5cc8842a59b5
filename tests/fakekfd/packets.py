"""A null packet processor: takes packets off AQL queues and signals their completion; nothing is computed.

Packets: HSA Platform System Architecture 1.2, section 2.9. Signals: amd_signal_t of ROCr's amd_hsa_signal.h.
"""

from __future__ import annotations

import struct
import time

from tests.fakekfd.driver import Driver, Process, Queue
from tests.fakekfd.ioctls import Ioctls, Memory

AQL_KIND = 2
PACKET = 64
VENDOR, INVALID, DISPATCH, AGENT, BARRIER_AND, BARRIER_OR = 0, 1, 2, 4, 3, 5
NAMES = {
    VENDOR: "vendor",
    DISPATCH: "dispatch",
    AGENT: "agent",
    BARRIER_AND: "barrier_and",
    BARRIER_OR: "barrier_or",
}


def retire_all(driver: Driver, ioctls: Ioctls) -> None:
    """Retire what every queue holds."""
    with driver.lock:
        queues = [
            (process, queue) for process in driver.processes.values() for queue in process.queues.values()
        ]
    for process, queue in queues:
        if queue.kind == AQL_KIND:
            try:
                memory = Memory(process.pid)
            except OSError:
                continue  # it is dying
            try:
                while _retire(driver, ioctls, process, queue, memory):
                    pass
            except OSError:
                pass  # the ring is not there any more
            finally:
                memory.close()


def _retire(driver: Driver, ioctls: Ioctls, process: Process, queue: Queue, memory: Memory) -> bool:
    """Retire the next packet; whether there was one whose time had come."""
    written, done = (_number(memory, address) for address in (queue.write_pointer, queue.read_pointer))
    if done >= written:
        return False
    address = queue.ring + PACKET * (done % (queue.size // PACKET))
    packet = memory.read(address, PACKET)
    kind = packet[0]
    if kind == INVALID:
        return False  # not published yet
    if kind in (BARRIER_AND, BARRIER_OR):
        waits = [
            _number(memory, signal + 8) != 0 for signal in struct.unpack_from("<5Q", packet, 8) if signal
        ]
        if any(waits) if kind == BARRIER_AND else waits and all(waits):
            return False
    name = NAMES.get(kind, str(kind))
    driver.packets[name] = driver.packets.get(name, 0) + 1
    memory.write(address, struct.pack("<H", INVALID))
    memory.write(queue.read_pointer, struct.pack("<Q", done + 1))
    (signal,) = struct.unpack_from("<Q", packet, 56)
    if signal:
        _signal(ioctls, process, memory, signal)
    return True


def _signal(ioctls: Ioctls, process: Process, memory: Memory, signal: int) -> None:
    value, mailbox, event = struct.unpack("<qQI", memory.read(signal + 8, 20))
    now = time.monotonic_ns()
    memory.write(signal + 32, struct.pack("<QQ", now, now + 1000))
    memory.write(signal + 8, struct.pack("<q", value - 1))
    if mailbox:
        memory.write(mailbox, struct.pack("<Q", event))
    if event:
        ioctls.set_event(process, event)


def _number(memory: Memory, address: int) -> int:
    return int.from_bytes(memory.read(address, 8), "little")
