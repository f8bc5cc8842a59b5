"""Product names by PCI device id, for cards whose ``product_name`` is empty or absent.

From the public pci.ids database (vendor 1002), shortened to the family that the id stands for. Where one id
covers several products the name says so: a filter must not take one for the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

PRODUCTS: Mapping[int, str] = MappingProxyType(
    {
        0x6860: "AMD Instinct MI25",  # Vega 10 [Instinct MI25/MI25x2/V340/V320]
        0x738C: "AMD Instinct MI100",
        0x738E: "AMD Instinct MI100",
        0x7408: "AMD Instinct MI250X",
        0x740C: "AMD Instinct MI250X/MI250",
        0x740F: "AMD Instinct MI210",
        0x744C: "AMD Radeon RX 7900 XT/XTX",  # Navi 31 [Radeon RX 7900 XT/7900 XTX/7900M]
        0x74A0: "AMD Instinct MI300A",
        0x74A1: "AMD Instinct MI300X",
        0x74A2: "AMD Instinct MI308X",
        0x74A5: "AMD Instinct MI325X",
        0x74A9: "AMD Instinct MI300X HF",
        0x74B5: "AMD Instinct MI300X VF",
        0x74B9: "AMD Instinct MI325X VF",
        0x7550: "AMD Radeon RX 9070/9070 XT",
        0x7551: "AMD Radeon AI PRO R9700",
        0x7590: "AMD Radeon RX 9060 XT",
    }
)
MI300A = 0x74A0


def product(device_id: int | None, gfx: str | None) -> str:
    """The best name that is certain: by *device_id*, else what the target or the id alone says."""
    if device_id is not None and device_id in PRODUCTS:
        return PRODUCTS[device_id]
    if gfx:
        return f"AMD {gfx}"
    return f"AMD GPU 0x{device_id:04x}" if device_id else "AMD GPU"
