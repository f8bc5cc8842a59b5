"""Placeholder: bits of a CU mask and the hardware they fall on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Geometry:
    """How the CUs of one device lie in its XCCs, shader engines and arrays."""

    cus: int  # active CUs = usable mask bits
    xccs: int  # XCCs in this device
    engines: int  # shader engines per XCC
    arrays: int  # shader arrays per shader engine
    array_cus: int  # physical CUs per array, harvested ones included
    pair: int  # bits that must stay together: 2 where a WGP is the unit, else 1
