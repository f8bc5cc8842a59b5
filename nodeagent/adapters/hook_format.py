"""The bytes of a lease's two hook files, version 1. nodeagent/hook/format.h says the same in C.

Little endian, natural alignment. ``limits`` is root's and never changes; ``usage`` is the holder's: what
it says is shown, never acted upon.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nodeagent.domain.cuset import CuSet

VERSION = 1
SLOTS = 512  # processes of one lease that may use GPUs at a time
MAX_DEVICES = 64
MAX_CUS = 1024

USAGE_ROWS = 4096  # where the rows begin: a row a device, a cell of 8 bytes a slot
ROW_BYTES = SLOTS * 8
DENIED_AT = 64

_LIMITS = struct.Struct("<8sIIQIIII128s")
_DEVICE = struct.Struct("<IIQIIII128s")
_USAGE = struct.Struct("<8sIIIIQ")
USAGE_HEAD = _USAGE.size  # bytes that a usage file always begins with
_STRICT = 1
_MARGIN_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class HookDevice:
    """What the hook holds of one device. *cus* empty: no mask. *unit*: how many CUs must stay together.

    *queue_level*: the priority of queues that ask for none, and the highest there is; None: as programs ask.
    """

    gpu_id: int
    render_minor: int
    limit_bytes: int
    device_cus: int
    unit: int
    cus: CuSet
    queue_level: int | None = None


def shown_bytes(vram_bytes: int) -> int:
    """What programs are told of a slice: less, so that page tables and the like fit beside it."""
    return max(0, vram_bytes - max(_MARGIN_BYTES, vram_bytes // 100))


def limits_bytes(lease_id: int, devices: Sequence[HookDevice], usage_path: str, *, strict: bool) -> bytes:
    """The ``limits`` file.

    Raises:
        ValueError: more devices or CUs than the format holds, or a path that is too long for it.
    """
    path = usage_path.encode()
    if len(devices) > MAX_DEVICES or len(path) >= 128:
        raise ValueError(f"{len(devices)} devices or a path of {len(path)} bytes do not fit the hook's file")
    body = b"".join(_device(device) for device in devices)
    head = _LIMITS.pack(
        b"GPULIMIT",
        VERSION,
        _LIMITS.size + len(body),
        lease_id,
        _STRICT if strict else 0,
        len(devices),
        SLOTS,
        0,
        path,
    )
    return head + body


def usage_path(limits: bytes) -> str:
    """The path of the usage file that a ``limits`` file names. Raises ValueError where it is none."""
    try:
        magic, *_, path = _LIMITS.unpack_from(limits)
    except struct.error:
        raise ValueError("it is cut short") from None
    if magic != b"GPULIMIT":
        raise ValueError("it begins otherwise")
    return str(path.rstrip(b"\0").decode())


def usage_bytes(lease_id: int, devices: int) -> bytes:
    """An empty ``usage`` file."""
    head = _USAGE.pack(b"GPUUSAGE", VERSION, devices, SLOTS, 0, lease_id)
    return head.ljust(USAGE_ROWS, b"\0") + bytes(devices * ROW_BYTES)


def usage_size(devices: int) -> int:
    """Bytes of a ``usage`` file."""
    return USAGE_ROWS + devices * ROW_BYTES


def used_slots(usage: bytes, devices: int) -> list[int]:
    """The slots that have bytes of any of *devices*."""
    rows = [_row(usage, device) for device in range(devices)]
    return [slot for slot, cells in enumerate(zip(*rows, strict=True)) if any(cells)]


def used_bytes(usage: bytes, device: int, slots: Iterable[int] = range(SLOTS)) -> int:
    """What the processes in *slots* say they use of the lease's *device*-th device."""
    row = _row(usage, device)
    return sum(row[slot] for slot in slots)


def slot_lock(slot: int) -> int:
    """Offset of the byte that the process in *slot* keeps locked while it lives."""
    return (1 << 40) + 1 + slot


def denied_count(usage: bytes) -> int:
    """How many requests the hook refused."""
    return int.from_bytes(usage[DENIED_AT : DENIED_AT + 8], "little")


def _row(usage: bytes, device: int) -> tuple[int, ...]:
    row = usage[USAGE_ROWS + device * ROW_BYTES :][:ROW_BYTES].ljust(ROW_BYTES, b"\0")
    return struct.unpack(f"<{SLOTS}Q", row)


def _device(device: HookDevice) -> bytes:
    bits = device.device_cus if device.cus else 0
    if bits > MAX_CUS:
        raise ValueError(f"{bits} CUs do not fit the hook's mask")
    return _DEVICE.pack(
        device.gpu_id,
        device.render_minor,
        device.limit_bytes,
        device.device_cus,
        device.unit,
        (bits + 31) // 32 * 32,
        0 if device.queue_level is None else device.queue_level + 1,
        device.cus.bits.to_bytes(MAX_CUS // 8, "little"),
    )
