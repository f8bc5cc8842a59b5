"""PCI Express configuration space, as far as the doctor reads it: what bridges do with peers' traffic."""

from __future__ import annotations

import struct

_EXTENDED = 0x100  # where extended capabilities begin; without root the kernel shows 64 bytes of all
_ACS = 0x000D
_CONTROL = 6  # offset of the control register in the capability


def redirects(config: bytes) -> int | None:
    """The ACS control bits of a bridge; 0 where it has none, None where too little of *config* is shown.

    Extended capabilities as in the PCI Express base specification 7.6.3: a 16 bit id, 4 bits of version, 12
    bits of the next one's offset.
    """
    if len(config) <= _EXTENDED:
        return None
    at, seen = _EXTENDED, set()
    while at >= _EXTENDED and at not in seen and at + 8 <= len(config):
        seen.add(at)
        (header,) = struct.unpack_from("<I", config, at)
        if header & 0xFFFF == _ACS:
            return int(struct.unpack_from("<H", config, at + _CONTROL)[0])
        at = header >> 20
    return 0
