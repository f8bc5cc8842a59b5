"""A kernel that switches cards of a simulated node, as far as sysfs shows it, with the traps that it has.

What it does is what amdgpu_xcp.c, amdgpu_gfx.c and kfd_device.c do: the card's nodes go, and come back as one
for each partition behind all others, with new gpu_ids and render minors; partition 0 keeps the card's own.
"""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nodeagent.adapters.partitions import PartitionFiles
from nodeagent.adapters.sysfs import SysTree

NODES = "sys/class/kfd/kfd/topology/nodes"
DIVIDED = ("simd_count", "array_count", "num_xcc")
PARTS = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4, "CPX": 8}
BUSY, BROKEN, NOT_TAKEN = OSError(errno.EBUSY, "busy"), OSError(errno.EIO, "io"), "not taken"


@dataclass
class ImitatedKernel:
    """Switches the cards of one tree. What it does otherwise than asked is in *traps*, write by write.

    A trap is an OSError to answer with, `NOT_TAKEN` (success, and nothing changes), or a function that is
    called in place of bringing the card's nodes back.
    """

    traps: list[OSError | str | Callable[[], None]] = field(default_factory=list)
    written: list[tuple[str, str]] = field(default_factory=list)
    on_write: Callable[[], None] = lambda: None
    next_gpu_id: int = 5000
    root: Path = Path()

    def files(self, tree: SysTree) -> PartitionFiles:
        """The cards of *tree*, with what its machine file lacks: gpu_ids, banks, own locations."""
        self.root = tree.root
        for node in self._all():
            if not (node / "gpu_id").exists():
                self._complete(node)
        return PartitionFiles(tree, self.write)

    def _complete(self, node: Path) -> None:
        own = _properties(node)
        if int(own.get("simd_count", 0)) == 0:
            _write(node / "gpu_id", "0\n")
            return
        link = (self.root / f"sys/class/drm/renderD{own['drm_render_minor']}/device").readlink()
        own["location_id"] = str(int(link.name[5:7], 16) << 8)
        self._describe(node, own, _bytes(node))

    def _describe(self, node: Path, own: dict[str, str], size: int) -> None:
        self.next_gpu_id += 1
        _write(node / "properties", "".join(f"{key} {value}\n" for key, value in own.items()))
        _write(node / "mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {size}\n")
        _write(node / "gpu_id", f"{self.next_gpu_id}\n")

    def write(self, path: Path, content: bytes) -> None:
        mode, pci = content.decode().strip().upper(), path.parent.name
        self.written.append((pci, mode))
        self.on_write()
        trap = self.traps.pop(0) if self.traps else None
        if isinstance(trap, OSError):
            raise trap
        if mode not in (path.parent / "available_compute_partition").read_text():
            raise OSError(errno.EINVAL, "Invalid argument")
        if self.holders(pci):
            raise OSError(errno.EBUSY, "Device or resource busy")
        if trap == NOT_TAKEN:
            return
        path.write_text(f"{mode}\n")
        old = self._take_away(pci)
        if callable(trap):
            self.pending = (pci, mode, old)
            trap()
        else:
            self._bring(pci, mode, old)

    def come_back(self) -> None:
        """Bring the nodes that a trap kept away."""
        self._bring(*self.pending)

    def hold(self, pid: int, pci: str) -> None:
        """A process opens /dev/kfd, which counts it on the card whether it uses it or not."""
        for node in self._nodes(pci):
            file = self.root / f"sys/class/kfd/kfd/proc/{pid}/vram_{(node / 'gpu_id').read_text().strip()}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("0\n")

    def end(self, pid: int) -> None:
        shutil.rmtree(self.root / f"sys/class/kfd/kfd/proc/{pid}")

    def holders(self, pci: str) -> list[int]:
        gpus = {(node / "gpu_id").read_text().strip() for node in self._nodes(pci)}
        files = (self.root / "sys/class/kfd/kfd/proc").glob("*/vram_*")
        return [int(file.parent.name) for file in files if file.name.removeprefix("vram_") in gpus]

    def say(self, pci: str, mode: str) -> None:
        """What the file says from now on, whatever the card is."""
        (self.root / f"sys/bus/pci/devices/{pci}/current_compute_partition").write_text(f"{mode}\n")

    # -- nodes ---------------------------------------------------------------------------------------

    def _nodes(self, pci: str) -> list[Path]:
        location = int(pci[5:7], 16) << 8
        return [node for node in self._all() if int(_properties(node).get("location_id", 0)) & ~7 == location]

    def _all(self) -> list[Path]:
        return sorted((self.root / NODES).iterdir(), key=lambda node: int(node.name))

    def _take_away(self, pci: str) -> dict[str, str]:
        """The card's nodes go; the properties of the whole card."""
        nodes = self._nodes(pci)
        old = _properties(nodes[0])
        parts = len(nodes)
        old |= {key: str(int(old[key]) * parts) for key in DIVIDED}
        old["bytes"] = str(sum(_bytes(node) for node in nodes))
        for node in nodes:
            minor = _properties(node)["drm_render_minor"]
            if minor != old["drm_render_minor"]:
                shutil.rmtree(self.root / f"sys/class/drm/renderD{minor}")
            shutil.rmtree(node)
        self._count()
        return old

    def _bring(self, pci: str, mode: str, old: dict[str, str]) -> None:
        parts = PARTS[mode]
        for index in range(parts):
            node = self.root / NODES / str(1 + max(int(one.name) for one in self._all()))
            own = old | {key: str(int(old[key]) // parts) for key in DIVIDED}
            own["location_id"] = str(int(old["location_id"]) & ~7 | index)
            if index:
                own["drm_render_minor"] = str(self._platform())
            self._describe(node, own, int(own.pop("bytes")) // parts)
        self._count()

    def _platform(self) -> int:
        """A platform device with a render node of its own; its minor."""
        drm = self.root / "sys/class/drm"
        taken = {int(one.name.removeprefix("renderD")) for one in drm.iterdir()}
        minor = next(number for number in range(128, 256) if number not in taken)
        (drm / f"renderD{minor}").mkdir()
        (drm / f"renderD{minor}/device").symlink_to(f"../../../devices/platform/amdgpu_xcp_{minor}")
        return minor

    def _count(self) -> None:
        """Nodes are numbered without gaps, whatever went, and the generation grows."""
        for number, node in enumerate(self._all()):
            node.rename(node.with_name(str(number)))
        file = self.root / NODES.replace("nodes", "generation_id")
        file.write_text(f"{int(file.read_text()) + 1 if file.exists() else 1}\n")


def _properties(node: Path) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in (node / "properties").read_text().splitlines() if " " in line)


def _bytes(node: Path) -> int:
    texts = (bank.read_text() for bank in node.glob("mem_banks/*/properties"))
    found = [re.search(r"size_in_bytes (\d+)", text) for text in texts]
    return sum(int(one[1]) for one in found if one) or 206_141_652_992


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
