"""Checks of the kernel and its amdgpu driver: loaded, of a good release, with settings that share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.domain.doctor.check import Verdict, check, either, fail, ok, unseen, warn

AREA = "driver"
FEW_QUEUES = 8  # compute queues of a card that share badly once kernel rings have their part of them
_LEAKING = "6.16.6"  # amdgpu-dkms of ROCm 7.1
# By version of AMD's driver, the oldest and newest ROCm that AMD lists with it; newer are not judged.
_SUPPORTED = {
    (6, 3): ((5, 6), (6, 2)),  # of ROCm 6.0
    (6, 7): ((5, 7), (6, 3)),  # 6.1
    (6, 8): ((6, 0), (6, 4)),  # 6.2
    (6, 10): ((6, 1), (7, 0)),  # 6.3
    (6, 12): ((6, 2), (7, 1)),  # 6.4
    (6, 14): ((6, 3), (7, 2)),  # 7.0
}
_NO_HWS = 2  # sched_policy: user queues are not scheduled by the hardware at all
_GFX9_WITH_XNACK = ("gfx90a", "gfx942", "gfx950")
_MOST_GTT = 0.8  # of system memory: beyond, what GPUs take there starves the node


@dataclass(frozen=True, slots=True)
class Driver:
    """The kernel as it runs. *parameters* are amdgpu's, as text; those that may not be read are missing."""

    release: str
    loaded: bool
    kfd: bool
    version: str | None = None  # of the module: only AMD's own packages have one
    rocm: str | None = None  # the newest ROCm in /opt, "7.2.1"
    parameters: Mapping[str, str] = field(default_factory=dict)
    gfx: tuple[str, ...] = ()  # one a card
    queues: tuple[int, ...] = ()  # compute queues a device
    numa_nodes: int = 1
    numa_balancing: int | None = None
    overcommit: int | None = None  # vm.overcommit_memory
    memory_bytes: int = 0  # of the node
    gtt_bytes: int = 0  # the largest GTT of a card
    events: str | None = None  # why the kernel's events cannot be heard; None: they can

    def number(self, name: str) -> int | None:
        """A parameter as a number; None where it is not there, or none."""
        text = self.parameters.get(name, "")
        return int(text) if text.lstrip("-").isdecimal() else None


def _unloaded(driver: Driver) -> str | None:
    return None if driver.loaded else "amdgpu is not loaded"


@check(
    Driver,
    AREA,
    fix="load the driver (modprobe amdgpu), start nodeagent after it; a container needs the node's /sys",
    issue="ROCm/k8s-device-plugin#170",
)
def amdgpu_loaded(driver: Driver) -> Verdict:
    """The amdgpu driver is loaded, and its compute part (KFD) with it."""
    if not driver.loaded:
        return fail("amdgpu is not loaded")
    if not driver.kfd:
        return fail("amdgpu is loaded without KFD: no /sys/class/kfd")
    return ok(f"amdgpu on Linux {driver.release}")


@check(
    Driver,
    AREA,
    fix="install the amdgpu driver of ROCm 7.2 or newer, then reboot",
    issue="ROCm/rocm-systems#8263",
    without=_unloaded,
)
def driver_release(driver: Driver) -> Verdict:
    """The amdgpu driver is not of the releases that strand VRAM when a job is killed."""
    if driver.version is None:
        return ok(f"the driver of Linux {driver.release} itself")
    if driver.version.startswith(_LEAKING):
        return warn(
            f"amdgpu {driver.version} is of ROCm 7.1: VRAM of killed jobs may stay used until a reboot"
        )
    return ok(f"amdgpu {driver.version}")


@check(
    Driver,
    AREA,
    fix="install releases of ROCm and of the amdgpu driver that AMD lists together (user and kernel-space "
    "support matrix)",
    issue="ROCm/legacy-rocm-build#1299",
    without=_unloaded,
)
def rocm_and_driver(driver: Driver) -> Verdict:
    """ROCm in /opt and AMD's driver package are of releases that are supported together."""
    if driver.rocm is None:
        return ok("no ROCm in /opt: programs bring their own")
    if driver.version is None:
        return ok(f"ROCm {driver.rocm} on the driver of Linux {driver.release} itself")
    both, rocm = f"ROCm {driver.rocm} on amdgpu {driver.version}", _two(driver.rocm)
    oldest, newest = _SUPPORTED.get(_two(driver.version) or (0, 0), ((0, 0), (99, 0)))
    if rocm is not None and not oldest <= rocm <= newest:
        return warn(f"{both}, which goes with {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}")
    return ok(both)


@check(
    Driver,
    AREA,
    fix="upgrade ROCm beyond 7.2, or set HSA_ENABLE_IPC_MODE_LEGACY=1 for programs that share memory",
    issue="ROCm/hip#3886",
)
def rocm_ipc(driver: Driver) -> Verdict:
    """ROCm in /opt is not of the releases that keep VRAM which was shared between processes."""
    rocm = _two(driver.rocm or "")
    if rocm is not None and (7, 0) <= rocm <= (7, 2):
        return warn(f"ROCm {driver.rocm}: memory that was exported stays used after hipFree")
    return ok(f"ROCm {driver.rocm}" if driver.rocm else "no ROCm in /opt")


@check(
    Driver,
    AREA,
    fix="boot with amdgpu.num_kcq=0, which gives the kernel's compute rings to programs (then try it: "
    "the effect depends on card and firmware), or lease such cards whole",
    issue="ROCm/amdgpu#227",
    without=_unloaded,
)
def kernel_queues(driver: Driver) -> Verdict:
    """On cards with few compute queues the kernel does not keep some for itself (num_kcq)."""
    few = [count for count in driver.queues if count <= FEW_QUEUES]
    if not few:
        return ok("every device has more than 8 compute queues")
    if driver.number("num_kcq") == 0:
        return ok("num_kcq=0")
    if driver.number("num_kcq") is None:
        return unseen("/sys/module/amdgpu/parameters/num_kcq cannot be read")
    kept = driver.parameters["num_kcq"]
    return warn(
        f"{len(few)} devices have {min(few)} compute queues, and num_kcq={kept} keeps some of the card's"
    )


@check(
    Driver,
    AREA,
    fix="remove amdgpu.sched_policy and amdgpu.hws_max_conc_proc from the kernel's command line",
    issue="ROCm/legacy-rocm-build#2705",
    without=_unloaded,
)
def queue_scheduler(driver: Driver) -> Verdict:
    """The hardware schedules the queues of several processes at once."""
    if driver.number("sched_policy") == _NO_HWS:
        return fail("sched_policy=2: without the hardware scheduler processes cannot share a GPU")
    if driver.number("hws_max_conc_proc") == 1:
        return warn("hws_max_conc_proc=1: one process at a time is on the GPU, whatever its slice")
    return ok("the hardware scheduler is in use")


@check(
    Driver,
    AREA,
    fix="remove amdgpu.no_system_mem_limit: system memory for GPUs is in no memory cgroup",
    issue="flux-framework/flux-core#5949",
    without=_unloaded,
)
def system_memory_limit(driver: Driver) -> Verdict:
    """What GPU programs may take of system memory is bounded by the driver."""
    if driver.parameters.get("no_system_mem_limit", "N") in ("Y", "1"):
        return warn("no_system_mem_limit is set: one program can take all memory of the node")
    return ok("bounded by the driver")


@check(
    Driver,
    AREA,
    fix="lower amdgpu.gttsize (MiB), or leave it out",
    issue="ROCm/legacy-rocm-build#6370",
    without=_unloaded,
)
def gtt_size(driver: Driver) -> Verdict:
    """GTT, system memory that GPUs map and no cgroup counts, leaves the node room to live."""
    if not driver.gtt_bytes or not driver.memory_bytes:
        return ok("no GTT to be seen")
    share = driver.gtt_bytes / driver.memory_bytes
    if share > _MOST_GTT:
        return warn(f"a card may map {share:.0%} of system memory")
    return ok(f"at most {share:.0%} of system memory a card")


@check(
    Driver,
    AREA,
    fix="set vm.overcommit_memory to 0 or 1: ROCm reserves address space of the size of all VRAM",
    issue="ROCm/ROCR-Runtime#287",
)
def overcommit(driver: Driver) -> Verdict:
    """The kernel lets programs reserve more address space than there is memory."""
    if driver.overcommit == 2:
        return fail("vm.overcommit_memory=2: ROCm's reservations are refused as out of memory")
    return ok(f"vm.overcommit_memory={driver.overcommit}")


@check(
    Driver,
    AREA,
    fix="boot with amdgpu.noretry=0 and start such programs with HSA_XNACK=1, or do not oversubscribe VRAM",
    issue="kokkos/kokkos#7567",
    without=_unloaded,
)
def xnack(driver: Driver) -> Verdict:
    """Cards that can page VRAM (XNACK) are let to, so that managed memory may exceed their slice."""
    able = [gfx for gfx in driver.gfx if gfx in _GFX9_WITH_XNACK]
    if not able:
        return ok("no card pages VRAM: a slice is never oversubscribed")
    if driver.number("noretry") == 1:
        return warn(f"noretry=1 turns it off on {able[0]}: managed memory over the slice is slow or fails")
    return ok(f"{able[0]} can, where a program asks by HSA_XNACK=1")


@check(
    Driver,
    AREA,
    fix="remove amdgpu.gpu_recovery=0 from the kernel's command line",
    issue="ROCm/legacy-rocm-build#616",
    without=_unloaded,
)
def gpu_recovery(driver: Driver) -> Verdict:
    """A GPU that hangs is reset by its driver."""
    if driver.number("gpu_recovery") == 0:
        return warn("gpu_recovery=0: a hung GPU stays so, and with it all leases on it, until a reboot")
    return ok("on")


@check(
    Driver,
    AREA,
    fix="sysctl kernel.numa_balancing=0, and keep it in /etc/sysctl.d",
    issue="ROCm/amdsmi#81",
)
def numa_balancing(driver: Driver) -> Verdict:
    """On nodes of several NUMA nodes the kernel does not move pages about under GPU programs."""
    if driver.numa_nodes > 1 and driver.numa_balancing:
        return warn(f"kernel.numa_balancing={driver.numa_balancing} on {driver.numa_nodes} NUMA nodes")
    return ok("off" if driver.numa_nodes > 1 else "one NUMA node")


@check(
    Driver,
    AREA,
    fix="run the agent in the node's own network namespace: the kernel announces nothing in others",
    issue="ROCm/rocm-systems#2657",
)
def kernel_events(driver: Driver) -> Verdict:
    """GPU resets and hot-plug are heard of as the kernel announces them."""
    offenders = [driver.events] if driver.events else []
    return either(offenders, warn, "they are")


def _two(version: str) -> tuple[int, int] | None:
    """The first two numbers of a version."""
    numbers = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else None


CHECKS = (
    amdgpu_loaded,
    driver_release,
    rocm_and_driver,
    rocm_ipc,
    kernel_queues,
    queue_scheduler,
    system_memory_limit,
    gtt_size,
    overcommit,
    xnack,
    gpu_recovery,
    numa_balancing,
    kernel_events,
)
