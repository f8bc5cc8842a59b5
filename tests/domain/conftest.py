"""Machines made by hand from the figures of real ones: no file is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from nodeagent.domain.device import Device, DeviceState, Inventory, Link, Pool
from nodeagent.domain.geometry import Geometry
from nodeagent.domain.lease import HeldSlice, PlacedSlice, SliceState
from nodeagent.domain.placement import place
from nodeagent.domain.refusals import Refusal
from nodeagent.domain.request import Request

GIB = 1 << 30
GEOMETRIES = {
    "mi300x-spx": Geometry(304, 8, 4, 1, 10, 1),
    "mi300x-cpx": Geometry(38, 1, 4, 1, 10, 1),
    "mi210": Geometry(104, 1, 8, 1, 14, 1),
    "vega10": Geometry(64, 1, 4, 1, 16, 1),
    "rx7900xtx": Geometry(96, 1, 6, 2, 8, 2),
    "r9700": Geometry(64, 1, 4, 2, 8, 2),
}
PRODUCTS = {
    "mi300x-spx": ("AMD Instinct MI300X", "gfx942"),
    "mi300x-cpx": ("AMD Instinct MI300X", "gfx942"),
    "mi210": ("AMD Instinct MI210", "gfx90a"),
    "vega10": ("Radeon Instinct MI25", None),
    "rx7900xtx": ("AMD Radeon RX 7900 XTX", "gfx1100"),
    "r9700": ("AMD Radeon AI PRO R9700", "gfx1201"),
}


class Machines:
    """Makes devices and nodes of the known kinds."""

    geometries = GEOMETRIES

    def device(self, kind: str, number: int = 0, **changes: object) -> Device:
        product, gfx = PRODUCTS[kind]
        pci = f"0000:{0x11 + number:02x}:00.0"
        made = Device(
            key=f"{pci}/0",
            epoch=1,
            pci=pci,
            partition=0,
            render_node=f"renderD{128 + 8 * number}",
            kfd_node=2 + number,
            ordinal=number,
            gpu_id=1000 + number,
            unique_id=0xC34EC50444DD0A00 + number,
            product=product,
            gfx=gfx,
            geometry=GEOMETRIES[kind],
            pool=f"{pci}/vram",
            vram_bytes=64 * GIB,
            grantable_bytes=63 * GIB,
            queue_slots=24,
            numa_node=number // 4,
            hive=1,
            peers=(),
            compute_partition=None,
            memory_partition=None,
            state=DeviceState.HEALTHY,
            reason=None,
            uuid=f"GPU-{0xC34EC50444DD0A00 + number:016x}",
        )
        return replace(made, **changes)

    def node(self, kind: str, count: int = 1, **changes: object) -> Inventory:
        return self.of(self.device(kind, number, **changes) for number in range(count))

    def of(self, devices: Iterator[Device] | Sequence[Device]) -> Inventory:
        """A node of *devices*; devices that name one pool share what the first of them has."""
        devices = tuple(devices)
        pools = {
            one.pool: Pool(one.pool, f"drm/{one.pci}/vram", one.vram_bytes, one.grantable_bytes)
            for one in reversed(devices)
        }
        return Inventory(1, devices, tuple(pools.values()))

    def hives(self, kind: str = "mi210") -> Inventory:
        """Eight devices: 0 to 3 and 4 to 7 fully linked by XGMI; NUMA node 0 has the even, 1 the odd ones."""
        plain = [self.device(kind, number, numa_node=number % 2) for number in range(8)]
        return self.of(
            [
                replace(
                    one,
                    peers=tuple(
                        Link(other.key, "xgmi" if at // 4 == number // 4 else "pcie", 15)
                        for at, other in enumerate(plain)
                        if at != number
                    ),
                )
                for number, one in enumerate(plain)
            ]
        )

    def partitions(self, cards: int = 8, per_card: int = 8) -> Inventory:
        """CPX partitions that share their card's pool and unique id, hence have no UUID."""
        made = []
        for card in range(cards):
            whole = self.device("mi300x-cpx", card)
            for partition in range(per_card):
                made.append(
                    replace(
                        whole,
                        key=f"{whole.pci}/{partition}",
                        partition=partition,
                        ordinal=len(made),
                        kfd_node=2 + len(made),
                        render_node=f"renderD{128 + len(made)}",
                        compute_partition="CPX",
                        uuid=None,
                    )
                )
        return self.of(made)


@pytest.fixture(scope="session")
def machines() -> Machines:
    return Machines()


@dataclass
class Node:
    """A node with a ledger that is a list: grants are kept, refusals leave nothing."""

    inventory: Inventory
    held: list[HeldSlice] = field(default_factory=list)
    leases: int = 0

    def ask(self, request: Request, ends_ns: int | None = None) -> tuple[PlacedSlice, ...] | Refusal:
        answer = place(self.inventory, tuple(self.held), request)
        if not isinstance(answer, Refusal):
            self.leases += 1
            for placed in answer:
                number = len(self.held) + 1
                self.held.append(HeldSlice(number, self.leases, 1000, placed, SliceState.HELD, ends_ns))
        return answer

    def free(self, lease: int) -> None:
        self.held = [one for one in self.held if one.lease != lease]

    def mark(self, lease: int, state: SliceState) -> None:
        self.held = [replace(one, state=state) if one.lease == lease else one for one in self.held]


@pytest.fixture(scope="session")
def new_node() -> type[Node]:
    return Node
