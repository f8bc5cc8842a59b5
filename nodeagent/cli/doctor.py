"""What the agent needs on a node, looked at one by one, each with the fix."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from nodeagent import config as settings
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.adapters.discovery import discover
from nodeagent.adapters.sysfs import SysTree
from nodeagent.adapters.uevents import UeventSocket
from nodeagent.cli.asking import health_line
from nodeagent.domain.device import DeviceState
from nodeagent.domain.errors import OutsideFault


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at."""

    what: str
    ok: bool
    why: str


def examine(config_path: Path | None, *, socket: Path | None, state_dir: Path | None) -> list[Finding]:
    """Look at settings, devices, cgroups, kernel events, the state directory and the running agent."""
    path = config_path or settings.DEFAULT_PATH
    config, complaints = settings.check(path)
    line, code = health_line(socket or config.server.socket)
    return [
        Finding("settings", not complaints, "; ".join(complaints) or settings.verdict(path)),
        *_devices(config),
        _cgroups(),
        _uevents(),
        _state(state_dir or config.state.directory),
        Finding("agent", code == 0, line.removeprefix("agent: ")),
    ]


def _devices(config: settings.Config) -> list[Finding]:
    found = discover(SysTree(Path("/")), include_apus=config.devices.include_apus)
    if not found.devices:
        return [Finding("devices", False, "no AMD GPU in /sys/class/kfd/kfd/topology: is amdgpu loaded?")]
    skipped = [Finding(f"KFD node {one.kfd_node}", False, one.reason) for one in found.skipped]
    healthy = (DeviceState.HEALTHY, DeviceState.EXCLUDED)
    return skipped + [
        Finding(device.key, device.state in healthy, device.reason or device.product)
        for device in found.devices
    ]


def _cgroups() -> Finding:
    mount = find_mount()
    if mount is None:
        return Finding("cgroup2", False, "not mounted: leases are held by process only; mount cgroup2")
    if os.geteuid() != 0:
        return Finding("cgroup2", False, f"{mount}: only root may make lease cgroups; run the agent as root")
    return Finding("cgroup2", True, str(mount))


def _uevents() -> Finding:
    source = UeventSocket()
    try:
        source.open()
    except OutsideFault as fault:
        why = f"{fault}; device changes are found by looking, GPU resets not: run the agent on the host"
        return Finding("kernel events", False, why)
    source.close()
    return Finding("kernel events", True, "GPU resets and hot-plug are heard of")


def _state(directory: Path) -> Finding:
    if not directory.exists():
        return Finding("state", True, f"{directory}: not there yet, made at the first start")
    mode = directory.stat().st_mode & 0o777
    return Finding(
        "state", mode == 0o700, f"{directory}: mode {mode:o}" + ("" if mode == 0o700 else "; chmod 700")
    )
