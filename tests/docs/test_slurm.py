"""The table of shards in docs/slurm.md is what the code makes of the shipped machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nodeagent.adapters import machine
from nodeagent.adapters.discovery import discover
from nodeagent.domain.device import Device
from nodeagent.domain.shards import Worth, best

PAGE = Path(__file__).resolve().parents[2] / "docs" / "slurm.md"
BEGIN, END = "<!-- shards: begin -->\n", "<!-- shards: end -->\n"
HEAD = (
    "| machine | shards | CUs of each | worth | VRAM of each | queues | CUs in none |\n" + "|---" * 7 + "|\n"
)


def devices(place: Path) -> Iterator[tuple[str, Device]]:
    """The first device of each machine; all of a machine are alike."""
    for name in machine.names():
        simulated = machine.find(name)
        machine.materialise(simulated, place / name)
        yield name, discover(machine.SimulatedTree(place / name, simulated)).devices[0]


def row(name: str, device: Device, one: Worth) -> str:
    gib = one.vram_bytes / (1 << 30)
    return (
        f"| `{name}` | {one.shards} | {one.cus} | {one.effective_cus} | {gib:.1f} GiB | {one.queue_slots}"
        f" | {one.spare_cus} of {device.cus} |\n"
    )


def test_the_table_is_what_the_code_makes(tmp_path: Path) -> None:
    """Every shipped machine, with the number of shards that is printed for it."""
    rows = [row(name, one, best(one, one.geometry)) for name, one in devices(tmp_path) if one.geometry]
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert shown == HEAD + "".join(rows)
