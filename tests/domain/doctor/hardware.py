"""What the checks of driver, cards and devices say of good nodes and of bad ones."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.domain.device import Device, DeviceState, Inventory, Skipped
from nodeagent.domain.doctor.cards import Card, Cards, LinkEnd
from nodeagent.domain.doctor.devices import Devices, NodeFile
from nodeagent.domain.doctor.driver import Driver

from .case import FAIL, OK, UNSEEN, WARN, Case

A, B = "0000:05:00.0", "0000:27:00.0"
DRIVER = Driver(
    release="6.14.0",
    loaded=True,
    kfd=True,
    version="6.16.13",
    rocm="7.3.0",
    parameters={"num_kcq": "-1", "sched_policy": "0", "noretry": "-1", "gpu_recovery": "-1"},
    gfx=("gfx942",),
    queues=(24,),
    numa_nodes=2,
    numa_balancing=0,
    overcommit=0,
    memory_bytes=1 << 40,
    gtt_bytes=1 << 39,
)


def driver(**changes: object) -> Driver:
    return replace(DRIVER, **changes)


def parameter(**values: str) -> Driver:
    return driver(parameters={**DRIVER.parameters, **values})


DRIVERS = (
    Case("amdgpu-loaded", DRIVER, OK, "6.14.0"),
    Case("amdgpu-loaded", driver(loaded=False), FAIL, "not loaded"),
    Case("amdgpu-loaded", driver(kfd=False), FAIL, "KFD"),
    Case("driver-release", DRIVER, OK, "6.16.13"),
    Case("driver-release", driver(version=None), OK, "Linux 6.14.0"),
    Case("driver-release", driver(version="6.16.6"), WARN, "ROCm 7.1"),
    Case("driver-release", driver(loaded=False), UNSEEN),
    Case("rocm-and-driver", DRIVER, OK),
    Case("rocm-and-driver", driver(rocm=None), OK),
    Case("rocm-and-driver", driver(version=None), OK),
    Case("rocm-and-driver", driver(version="6.8.5", rocm="6.2.0"), OK),
    Case("rocm-and-driver", driver(version="6.8.5", rocm="7.2.0"), WARN, "6.0 to 6.4"),
    Case("rocm-and-driver", driver(version="6.12.12", rocm="6.0.0"), WARN, "6.2 to 7.1"),
    Case("rocm-and-driver", driver(version="odd", rocm="7.2.0"), OK),
    Case("rocm-ipc", DRIVER, OK),
    Case("rocm-ipc", driver(rocm=None), OK),
    Case("rocm-ipc", driver(rocm="7.1.1"), WARN, "hipFree"),
    Case("rocm-ipc", driver(rocm="6.4.3"), OK),
    Case("kernel-queues", DRIVER, OK),
    Case("kernel-queues", driver(queues=(4, 24)), WARN, "1 devices have 4"),
    Case("kernel-queues", replace(parameter(num_kcq="0"), queues=(4,)), OK),
    Case("kernel-queues", driver(queues=(8,), parameters={}), UNSEEN, "num_kcq"),
    Case("queue-scheduler", DRIVER, OK),
    Case("queue-scheduler", parameter(sched_policy="2"), FAIL, "sched_policy=2"),
    Case("queue-scheduler", parameter(hws_max_conc_proc="1"), WARN, "one process"),
    Case("system-memory-limit", DRIVER, OK),
    Case("system-memory-limit", parameter(no_system_mem_limit="Y"), WARN),
    Case("gtt-size", DRIVER, OK, "50%"),
    Case("gtt-size", driver(gtt_bytes=1 << 40), WARN, "100%"),
    Case("gtt-size", driver(gtt_bytes=0), OK),
    Case("overcommit", DRIVER, OK),
    Case("overcommit", driver(overcommit=2), FAIL, "=2"),
    Case("xnack", DRIVER, OK),
    Case("xnack", parameter(noretry="1"), WARN, "gfx942"),
    Case("xnack", replace(parameter(noretry="1"), gfx=("gfx1100",)), OK),
    Case("gpu-recovery", DRIVER, OK),
    Case("gpu-recovery", parameter(gpu_recovery="0"), WARN, "hung"),
    Case("numa-balancing", DRIVER, OK, "off"),
    Case("numa-balancing", driver(numa_balancing=1), WARN, "2 NUMA nodes"),
    Case("numa-balancing", driver(numa_balancing=1, numa_nodes=1), OK),
    Case("kernel-events", DRIVER, OK),
    Case("kernel-events", driver(events="another namespace"), WARN, "another namespace"),
)

CARD = Card(
    pci=A,
    gfx="gfx942",
    links=(LinkEnd(A, 16, 16, 32.0, 32.0), LinkEnd("0000:03:00.0", 16, 16, 32.0, 32.0)),
    corrected=3,
    nonfatal=0,
    fatal=0,
    replays=0,
    ras={"umc": (0, 12)},
    vram_bytes=1 << 37,
    visible_bytes=1 << 37,
    numa_node=0,
    iommu="identity",
    acs={"0000:00:01.1": 0x10},
)
CARDS = Cards((CARD, replace(CARD, pci=B)), numa_nodes=2)


def card(**changes: object) -> Cards:
    """Two cards, of which the second is as *changes* say."""
    return replace(CARDS, cards=(CARD, replace(CARD, pci=B, **changes)))


def asleep(**changes: object) -> Cards:
    return card(asleep=True, links=(), ras={}, acs={}, **changes)


NO_CARDS = Cards(())
CARD_CASES = (
    Case("pcie-width", CARDS, OK),
    Case("pcie-width", card(links=(LinkEnd(B, 8, 16, 32.0, 32.0),)), WARN, f"{B}: x8 of x16"),
    Case(
        "pcie-width", card(links=(CARD.links[0], LinkEnd("0000:03:00.0", 4, 16, 1, 1))), WARN, "0000:03:00.0"
    ),
    Case("pcie-width", asleep(), UNSEEN, "not woken"),
    Case("pcie-width", card(links=(LinkEnd(B, None, None, None, None),)), OK),
    Case("pcie-width", NO_CARDS, UNSEEN),
    Case("pcie-speed", CARDS, OK),
    Case("pcie-speed", card(links=(LinkEnd(B, 16, 16, 2.5, 32.0),)), WARN, "2.5 of 32"),
    Case("pcie-speed", card(gfx="gfx1100", links=(LinkEnd(B, 16, 16, 2.5, 16.0),)), OK),
    Case("pcie-errors", CARDS, OK),
    Case("pcie-errors", card(fatal=1), FAIL, "1 fatal"),
    Case("pcie-errors", card(nonfatal=2), WARN, "2 uncorrected"),
    Case("pcie-errors", card(corrected=5000), WARN, "5000 corrected"),
    Case("pcie-errors", card(corrected=None, nonfatal=None, fatal=None), OK),
    Case("pcie-replays", CARDS, OK),
    Case("pcie-replays", card(replays=7), WARN, "7 replays"),
    Case("large-bar", CARDS, OK),
    Case("large-bar", card(visible_bytes=256 << 20), WARN, "256 of 131072 MiB"),
    Case("large-bar", card(visible_bytes=256 << 20, apu=True), OK),
    Case("iommu", CARDS, OK),
    Case("iommu", card(iommu="DMA-FQ"), WARN, "DMA-FQ"),
    Case("iommu", Cards((replace(CARD, iommu="DMA"),)), OK, "fewer than two"),
    Case("acs", CARDS, OK),
    Case("acs", card(acs={"0000:00:01.1": 0x1D}), WARN, "bridge 0000:00:01.1"),
    Case("acs", card(acs=None), UNSEEN, "root"),
    Case("acs", Cards((CARD,)), OK),
    Case("numa-node", CARDS, OK),
    Case("numa-node", card(numa_node=None), WARN, B),
    Case("numa-node", replace(card(numa_node=None), numa_nodes=1), OK),
    Case("ras-uncorrectable", CARDS, OK),
    Case("ras-uncorrectable", card(ras={"umc": (1, 0)}), FAIL, f"{B}: umc 1"),
    Case("ras-uncorrectable", asleep(), UNSEEN),
    Case("ras-corrected", CARDS, OK),
    Case("ras-corrected", card(ras={"sdma": (0, 4000)}), WARN, "sdma 4000"),
    Case("bad-pages", CARDS, OK),
    Case("bad-pages", card(bad_pages=3), WARN, f"{B}: 3"),
    Case("recent-resets", CARDS, OK),
    Case("recent-resets", replace(CARDS, dumps=(B,)), WARN, f"{B} was"),
)


def device(name: str, **changes: object) -> Device:
    made = Device(
        key=f"{name}/0",
        epoch=1,
        pci=name,
        partition=0,
        render_node=f"renderD{128 + (name == B)}",
        kfd_node=1,
        ordinal=0,
        gpu_id=7,
        unique_id=1,
        product="AMD Instinct MI300X",
        gfx="gfx942",
        geometry=None,
        pool=name,
        vram_bytes=1 << 37,
        grantable_bytes=1 << 37,
        queue_slots=24,
        numa_node=0,
        hive=0,
        peers=(),
        compute_partition="SPX",
        memory_partition="NPS1",
        state=DeviceState.HEALTHY,
        reason=None,
        uuid="GPU-1",
    )
    return replace(made, **changes)


def look(*devices: Device, skipped: tuple[Skipped, ...] = (), generation: int = 2) -> Inventory:
    return Inventory(generation, devices, (), skipped)


BOTH = look(device(A), device(B))
KFD, RENDER = NodeFile("/dev/kfd", True, (511, 0), (511, 0), 0o660, 105), "/dev/dri/renderD128"
RENDER_NODE = NodeFile(RENDER, True, (226, 128), (226, 128), 0o660, 105)
DEVICES = Devices(
    first=BOTH,
    second=BOTH,
    render_nodes={"renderD128": A, "renderD129": B},
    located={"renderD128": A, "renderD129": B},
    files=(KFD, RENDER_NODE),
    groups={"render": 105, "video": 44},
)


def both(inventory: Inventory, **changes: object) -> Devices:
    """*inventory* at each of two looks."""
    return replace(DEVICES, first=inventory, second=inventory, **changes)


def files(*changed: NodeFile) -> Devices:
    return replace(DEVICES, files=changed)


UNHEALTHY = device(B, state=DeviceState.UNHEALTHY, reason="no VRAM size")
MASKED = (Skipped(3, "masked by the device cgroup?"),)
APU = device(B, state=DeviceState.EXCLUDED, reason="an APU", product="Raphael")
DEVICE_CASES = (
    Case("devices-found", DEVICES, OK, "2 devices"),
    Case("devices-found", both(look()), FAIL, "no AMD GPU"),
    Case("devices-found", both(look(device(A), UNHEALTHY)), FAIL, "no VRAM size"),
    Case("devices-masked", DEVICES, OK),
    Case("devices-masked", both(look(device(A), skipped=MASKED)), WARN, "KFD node 3"),
    Case("device-mapping", DEVICES, OK),
    Case(
        "device-mapping", replace(DEVICES, render_nodes={"renderD128": A}), FAIL, "renderD129: KFD names it"
    ),
    Case("device-mapping", both(look(device(A))), FAIL, "KFD does not"),
    Case("device-mapping", both(look(device(A), skipped=MASKED)), UNSEEN, "hidden"),
    Case("device-mapping", replace(DEVICES, located={"renderD128": B}), FAIL, f"at {B} by KFD"),
    Case("device-mapping", both(look(device(A), device(B, render_node=None))), FAIL, "no render node"),
    Case("device-mapping", both(look()), UNSEEN),
    Case("device-names", DEVICES, OK),
    Case("device-names", both(look(device(A), device(B, uuid=None))), WARN, f"{B}/0 has none"),
    Case("device-names", both(look(device(A, uuid=None))), OK),
    Case("partitions-stable", DEVICES, OK),
    Case(
        "partitions-stable",
        replace(DEVICES, second=look(device(A), device(B, compute_partition="CPX"))),
        FAIL,
        "CPX",
    ),
    Case("partitions-stable", replace(DEVICES, second=look(device(A))), FAIL, f"{B}/0"),
    Case("partitions-stable", replace(DEVICES, second=replace(BOTH, generation=3)), WARN, "changed"),
    Case("partitions-complete", DEVICES, OK),
    Case(
        "partitions-complete", both(look(device(A, compute_partition="DPX"))), WARN, "1 devices in mode DPX"
    ),
    Case(
        "partitions-complete",
        both(
            look(
                device(A, compute_partition="CPX"),
                device(A, key=f"{A}/1", partition=1, compute_partition="CPX"),
                device(B, compute_partition="CPX"),
            )
        ),
        WARN,
        "others have 2",
    ),
    Case("partitions-alike", DEVICES, OK),
    Case("partitions-alike", both(look(device(A), device(B, memory_partition="NPS4"))), WARN, "SPX/NPS4"),
    Case("integrated-gpu", DEVICES, OK),
    Case("integrated-gpu", both(look(device(A), APU)), OK, "left out"),
    Case("integrated-gpu", replace(DEVICES, include_apus=True), WARN, "include_apus"),
    Case("queue-slots", DEVICES, OK, "24"),
    Case("queue-slots", both(look(device(A), device(B, queue_slots=4))), WARN, f"{B}/0: 4"),
    Case("device-nodes", DEVICES, OK),
    Case("device-nodes", files(replace(KFD, there=False)), FAIL, "/dev/kfd: is missing"),
    Case("device-nodes", files(KFD, replace(RENDER_NODE, number=None)), FAIL, "no character device"),
    Case("device-nodes", files(KFD, replace(RENDER_NODE, number=(226, 129))), FAIL, "not (226, 128)"),
    Case("device-permissions", DEVICES, OK),
    Case("device-permissions", files(replace(KFD, mode=0o666)), WARN, "mode 666"),
    Case("device-permissions", files(replace(KFD, mode=0o600)), WARN, "root alone"),
    Case("device-permissions", files(replace(KFD, mode=0o600, acl_uids=(1000,))), OK),
    Case("device-groups", DEVICES, OK, "render"),
    Case("device-groups", files(KFD, replace(RENDER_NODE, gid=44)), WARN, "several"),
    Case("device-groups", files(replace(KFD, gid=0)), WARN, "group root"),
    Case("device-groups", files(replace(KFD, gid=999)), WARN, "neither"),
    Case("device-groups", files(replace(KFD, there=False)), UNSEEN),
)
CASES = (*DRIVERS, *CARD_CASES, *DEVICE_CASES)
