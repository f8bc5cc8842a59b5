"""Devices and the pools of VRAM that they draw on, as discovery found them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nodeagent.domain.geometry import Geometry
from nodeagent.domain.reserved import Reserved

VRAM_GRAIN = 2 << 20  # bytes; amdgpu maps VRAM best in 2 MiB pages, so shares are rounded down to it


class DeviceState(StrEnum):
    """Whether a device may be granted from."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"  # listed, with the reason; never granted
    EXCLUDED = "excluded"  # left out on purpose: an APU beside a discrete GPU
    DRAINING = "draining"  # an administrator said: nothing new
    GONE = "gone"  # was there and vanished


class DeviceOwner(StrEnum):
    """Whose a device is: who else asks is refused."""

    ANY = "any"
    SLURM = "slurm"  # its scheduler gives it to jobs
    LOCAL = "local"  # everybody's but Slurm's


@dataclass(frozen=True, slots=True)
class Link:
    """One direct link to another device of the node (kernel io_links and p2p_links)."""

    device: str
    kind: str  # "xgmi" | "pcie"
    weight: int


@dataclass(frozen=True, slots=True)
class Device:
    """A card, or one compute partition of it: what ROCm can address and we can divide."""

    key: str  # "<pci>/<partition>", or "renderD<minor>/0" where that would not be unique
    epoch: int
    pci: str
    partition: int
    render_node: str | None  # "renderD128"
    kfd_node: int
    ordinal: int  # the index that ROCr gives it when every GPU of the node is visible
    gpu_id: int | None
    unique_id: int  # 0: none
    product: str
    gfx: str | None  # "gfx942"; None on kernels that do not say
    geometry: Geometry | None  # None only on an unhealthy device
    pool: str
    vram_bytes: int
    grantable_bytes: int
    queue_slots: int
    numa_node: int | None
    hive: int  # 0: none
    peers: tuple[Link, ...]
    compute_partition: str | None  # "SPX" … ; None where the card has no modes
    memory_partition: str | None
    state: DeviceState
    reason: str | None
    uuid: str | None  # "GPU-<16 hex>" where it names this device and no other on the node
    foreign_bytes: int = 0  # VRAM that processes in no lease hold, as last seen
    aliases: tuple[str, ...] = ()  # further spellings that tools print: serial, unique id, SMI UUID
    owner: DeviceOwner = DeviceOwner.ANY
    owner_reason: str | None = None  # what makes it that owner's
    mark: str = ""  # what it is recognised by until the node is rebooted, whatever comes or goes beside it
    card: str | None = None  # "card1", the DRM primary node
    smi_index: int | None = None  # see `nodeagent.domain.numbering`
    slurm_index: int | None = None  # its position in gres.conf; None where that does not name it
    reserved: Reserved | None = None  # for whom alone it is
    shares: int | None = None  # leases that may be on it at once; None: any number
    even_bytes: int = 0  # its even share of what its pool may grant, where each may take all; 0: its own VRAM

    @property
    def cus(self) -> int:
        return self.geometry.cus if self.geometry else 0

    @property
    def divided(self) -> bool:
        """Whether it is a compute partition, not a whole card."""
        if self.compute_partition is not None:
            return self.compute_partition.upper() != "SPX"
        return self.partition > 0

    @property
    def render_minor(self) -> int | None:
        """The minor number of its render node."""
        return None if self.render_node is None else int(self.render_node.removeprefix("renderD"))


@dataclass(frozen=True, slots=True)
class Pool:
    """VRAM that devices draw on: one per dmem region and memory domain. Bytes are capped per pool."""

    key: str
    region: str  # "drm/0000:c1:00.0/vram", the name in dmem.capacity
    vram_bytes: int
    grantable_bytes: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """A topology node that discovery could not read, or left out, with the reason. Never an abort."""

    kfd_node: int
    reason: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything one scan of the node found."""

    generation: int | None  # KFD's generation_id: another number means scan again
    devices: tuple[Device, ...]
    pools: tuple[Pool, ...]
    skipped: tuple[Skipped, ...] = ()

    def device(self, key: str) -> Device | None:
        return next((device for device in self.devices if device.key == key), None)

    def of_gpu(self, gpu_id: int) -> Device | None:
        """The device that KFD calls *gpu_id*."""
        return next((device for device in self.devices if device.gpu_id == gpu_id), None)

    def pool(self, key: str) -> Pool | None:
        return next((pool for pool in self.pools if pool.key == key), None)


def grantable(vram_bytes: int, idle_bytes: int, reserve_percent: float) -> int:
    """VRAM that may be granted: all, less what an idle device uses, less the reserve; whole 2 MiB."""
    left = vram_bytes - idle_bytes - int(vram_bytes * reserve_percent / 100)
    return max(0, left) // VRAM_GRAIN * VRAM_GRAIN
