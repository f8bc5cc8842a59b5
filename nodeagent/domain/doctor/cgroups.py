"""Checks of cgroups, and of the VRAM limits that the kernel keeps by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.domain.doctor.check import Verdict, check, either, fail, ok, unseen, warn

AREA = "cgroups"
_COPIED = ("cpu", "cpuset", "memory", "pids")  # limits that a lease's cgroup takes over from its caller's
CLOSED = ("/user.slice", "/machine.slice")  # whoever starts outside leases is in one of these


@dataclass(frozen=True, slots=True)
class Cgroups:
    """The hierarchy. *mount*: cgroup2's; *legacy*: controllers of version 1 that are mounted."""

    mount: str | None
    legacy: tuple[str, ...] = ()
    controllers: tuple[str, ...] = ()  # that the root offers
    enabled: tuple[str, ...] = ()  # for its children
    writable: str | None = None  # why the agent can make no cgroups; None: it can
    kills: bool = True  # whether there is cgroup.kill
    systemd: bool = False
    root: bool = True  # whether this process is root


@dataclass(frozen=True, slots=True)
class Vram:
    """The dmem controller. *holds*: whether limits do, by the running agent; None: nobody was asked."""

    offered: bool
    cards: tuple[str, ...] = ()  # PCI addresses of those that are leased
    capacity: Mapping[str, int] = field(default_factory=dict)
    holds: bool | None = None
    why: str = ""
    enabled: bool = True  # closure.enabled
    open: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # regions that a cgroup may still have


@check(
    Cgroups,
    AREA,
    fix="boot with systemd.unified_cgroup_hierarchy=1 (and cgroup_no_v1=all); without, leases go by process",
    issue="systemd/systemd#19245",
)
def cgroup_hierarchy(cgroups: Cgroups) -> Verdict:
    """The node has cgroup version 2, and no controllers left in version 1."""
    if cgroups.mount is None:
        return fail("no cgroup2 mount: leases are held by process only")
    if cgroups.legacy:
        return warn(f"hybrid: {', '.join(cgroups.legacy[:6])} are in version 1; cgroup2 at {cgroups.mount}")
    return ok(cgroups.mount)


@check(
    Cgroups,
    AREA,
    fix="run the agent as root and in the node's own cgroup namespace; no ProtectControlGroups= in its unit",
    issue="Project-HAMi/HAMi#1112",
)
def cgroup_writable(cgroups: Cgroups) -> Verdict:
    """Leases can have cgroups of their own."""
    if cgroups.mount is None:
        return fail("no cgroup2 mount")
    if not cgroups.root:
        return unseen("only root may make them, and this is not root")
    return either([cgroups.writable] if cgroups.writable else [], fail, f"below {cgroups.mount}")


@check(
    Cgroups,
    AREA,
    fix="upgrade to Linux 5.14 or newer",
    issue="sgl-project/sglang#23627",
)
def cgroup_kill(cgroups: Cgroups) -> Verdict:
    """The kernel ends everything in a lease at once (cgroup.kill), whatever forks meanwhile."""
    if cgroups.mount is None:
        return fail("no cgroup2 mount")
    return ok("it does") if cgroups.kills else warn("no cgroup.kill: leases are ended process by process")


@check(
    Cgroups,
    AREA,
    fix="write +cpu +cpuset +memory +pids to cgroup.subtree_control of the mount (systemd does by itself)",
    issue="facebookincubator/oomd#61",
)
def cgroup_controllers(cgroups: Cgroups) -> Verdict:
    """Below the root the controllers are on whose limits a lease takes over from its caller."""
    if cgroups.mount is None:
        return fail("no cgroup2 mount")
    lacking = [name for name in _COPIED if name not in cgroups.enabled]
    if not lacking:
        return ok(", ".join(_COPIED))
    elsewhere = [name for name in lacking if name in cgroups.legacy]
    return warn(f"{', '.join(lacking)} not" + (", for version 1 has them" if elsewhere else ""))


@check(
    Vram,
    AREA,
    fix="run a kernel built with CONFIG_CGROUP_DMEM (docs/kernel.md); without, memory is held by the hook",
    issue="ROCm/k8s-device-plugin#9",
)
def dmem_offered(vram: Vram) -> Verdict:
    """The kernel can limit VRAM by cgroup (dmem)."""
    if vram.offered:
        return ok("dmem in cgroup.controllers")
    return warn("no dmem in cgroup.controllers: memory of leases is not held by the kernel")


@check(
    Vram,
    AREA,
    fix="use the kernel's own amdgpu, or a driver package that registers regions with this kernel",
    issue="intel-gpu/xekmd-backports#514",
)
def dmem_regions(vram: Vram) -> Verdict:
    """The driver has registered each card's VRAM with dmem."""
    if not vram.offered:
        return ok("no dmem to register with")
    lacking = [f"{pci}: no region" for pci in vram.cards if f"drm/{pci}/vram" not in vram.capacity]
    return either(lacking, fail, f"{len(vram.capacity)} regions")


@check(
    Vram,
    AREA,
    fix="read the reason, then the agent's log (`tried VRAM limits`); `nodeagent audit` tries it from inside",
    issue="kai-scheduler/KAI-Scheduler#49",
)
def dmem_enforcing(vram: Vram) -> Verdict:
    """VRAM limits hold: the agent tried allocations that must fail, and closed all else."""
    if not vram.offered:
        return ok("no dmem; leases state what else holds them")
    if vram.holds is None:
        return unseen("the agent tries it, and does not answer; the doctor opens no GPU")
    return ok(vram.why) if vram.holds else fail(vram.why)


@check(
    Vram,
    AREA,
    fix="start the agent, which closes them; closure.exempt names cgroups that are open on purpose",
    issue="ROCm/spur#799",
)
def dmem_closure(vram: Vram) -> Verdict:
    """Sessions and machines outside leases get no VRAM of cards whose limits hold."""
    if not vram.offered or not vram.capacity:
        return ok("no dmem")
    if not vram.enabled:
        return warn("turned off by closure.enabled: whoever starts outside a lease has the whole card")
    offenders = [f"{path}: {', '.join(regions)}" for path, regions in sorted(vram.open.items())]
    return either(offenders, warn, "closed")


CHECKS = (
    cgroup_hierarchy,
    cgroup_writable,
    cgroup_kill,
    cgroup_controllers,
    dmem_offered,
    dmem_regions,
    dmem_enforcing,
    dmem_closure,
)
