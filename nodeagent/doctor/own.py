"""Gathers what the checks of the agent, its state and its leftovers judge."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nodeagent import __version__
from nodeagent import config as settings
from nodeagent.adapters.bank_files import BankFiles
from nodeagent.adapters.cdi_files import CdiFiles
from nodeagent.adapters.cgroup_mount import mounts
from nodeagent.adapters.hook_files import ROOT as HOOK
from nodeagent.adapters.hook_files import HookFiles
from nodeagent.adapters.sidecar_files import SidecarFiles
from nodeagent.doctor.hardware import device_files
from nodeagent.doctor.outside import open_to_others
from nodeagent.doctor.scene import Scene
from nodeagent.domain.doctor.agent import Service, State
from nodeagent.domain.doctor.check import Unseen
from nodeagent.domain.doctor.leftovers import Leftovers
from nodeagent.domain.errors import LedgerUnavailable
from nodeagent.domain.mode import Mode
from nodeagent.ledger.migrate import NEWEST, revision

UNITS = (
    "nodeagent.service",
    "nodeagent.socket",
    "nodeagent-outside.socket",
    "nodeagent-docker-plugin.socket",
)
OPTIONAL = "nodeagent-docker-plugin.socket"  # off unless the site names it in docker's settings
CHECK_SECONDS = 5.0  # of the ledger: one of a million leases takes a few
_SYSTEMCTL_SECONDS = 5.0
_STA_UNSYNC = 0x40  # adjtimex(2)
_TIMEX_BYTES, _MAXERROR_AT, _STATUS_AT = 256, 24, 40
_INSTANCE = re.compile(r"gpulease(_[0-9A-Za-z]+)?\.slice")


def service(scene: Scene) -> Service:
    """The agent's settings, its answer, its socket and its units."""
    systemctl = shutil.which("systemctl", path="/usr/bin:/bin") if scene.real else None
    units, restarts = units_of(systemctl) if systemctl else ({}, 0)
    socket = scene.config.server.socket
    return Service(
        settings=settings.verdict(scene.settings_path),
        complaints=tuple(scene.complaints),
        health=scene.health,
        version=__version__,
        served=str(scene.node["version"]) if scene.node else None,
        socket=str(socket),
        socket_trouble=_socket_trouble(socket),
        units=units,
        restarts=restarts,
        bypass=_bypass(scene.node or {}),
        observed=_observed(scene.node or {}),
        systemd=scene.tree.exists("run/systemd/system"),
    )


def state(scene: Scene) -> State:
    """The state directory, the ledger as it can be read beside a running agent, disks and clock."""
    directory, file = scene.config.state.directory, scene.ledger_file
    synchronised, error_ms = _clock() if scene.real else (True, 0)
    found = State(
        directory=str(directory),
        trouble=_not_private(directory),
        newest=NEWEST,
        log_bytes=_size(file.with_name(f"{file.name}-wal")),
        free=dict(_free(scene)),
        synchronised=synchronised,
        clock_error_ms=error_ms,
    )
    return _with_ledger(scene, found)


def leftovers(scene: Scene) -> Leftovers | Unseen:
    """What there is of leases outside the ledger, by the adapters that make it."""
    live, lease_uids = _live(scene)
    tree, stem = scene.cgroups, scene.stem
    return Leftovers(
        live=live,
        cgroups=frozenset(tree.existing()) if tree else frozenset(),
        hook=HookFiles(stem).leases(),
        banks=BankFiles(stem, scene.tree).leases(),
        cdi=CdiFiles(stem, scene.config.cdi.directory).leases(),
        sidecars=SidecarFiles(stem).leases(),
        acl_uids=frozenset(uid for one in device_files(scene) for uid in one.acl_uids),
        lease_uids=lease_uids,
        exempt_uids=frozenset(scene.config.devices.gate_exempt_uids),
        mounts=tuple(_mounts(scene)),
        instances=tuple(_others(scene)),
    )


def _bypass(node: Mapping[str, Any]) -> str | None:
    """Until when nothing is enforced, and why, by the agent's word."""
    told = node.get("bypass")
    return f"until {told.get('until')}: {told.get('reason')}" if isinstance(told, dict) else None


def _observed(node: Mapping[str, Any]) -> tuple[str, ...]:
    told = node.get("modes")
    return (
        tuple(kind for kind, mode in told.items() if mode == Mode.OBSERVE) if isinstance(told, dict) else ()
    )


def _socket_trouble(socket: Path) -> str | None:
    try:
        status = socket.stat()
    except OSError:
        return None  # the check `agent` tells
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid not in (0, os.geteuid()):
        return f"{socket}: is not a socket of root's"
    if status.st_mode & 0o006 != 0o006:
        return f"{socket}: mode {status.st_mode & 0o777:o}, so users cannot ask the agent"
    return open_to_others(socket.parent)


def units_of(systemctl: str) -> tuple[dict[str, str], int]:
    """The state of our units, those that are installed, and how often the agent was started again."""
    found: dict[str, str] = {}
    restarts = 0
    for unit in UNITS:
        told = _shown(systemctl, unit)
        state = f"{told.get('ActiveState', '?')}, {told.get('UnitFileState') or 'static'}"
        if told.get("LoadState") == "loaded" and (unit, state) != (OPTIONAL, "inactive, disabled"):
            found[unit] = state
            restarts += int(told.get("NRestarts") or 0)
    return found, restarts


def _shown(systemctl: str, unit: str) -> dict[str, str]:
    wanted = "--property=LoadState,ActiveState,UnitFileState,NRestarts"
    try:
        ran = subprocess.run(
            [systemctl, "show", wanted, "--", unit],
            capture_output=True,
            text=True,
            timeout=_SYSTEMCTL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    pairs = (line.partition("=") for line in ran.stdout.splitlines())
    return {name: value for name, _, value in pairs}


def _not_private(directory: Path) -> str | None:
    try:
        status = directory.stat()
    except OSError:
        return None  # made at the first start
    if status.st_uid not in (0, os.geteuid()):
        return f"{directory} belongs to uid {status.st_uid}"
    return f"{directory}: mode {status.st_mode & 0o777:o}" if status.st_mode & 0o077 else None


def _with_ledger(scene: Scene, found: State) -> State:
    ledger = scene.ledger
    if ledger is None:
        there = _may_be_there(scene.ledger_file)
        return replace(found, unreadable="the ledger cannot be read: only root may" if there else None)
    try:
        problems = ledger.problems(CHECK_SECONDS)
        return replace(
            found,
            revision=revision(scene.ledger_file),
            problems=problems or (),
            checked=problems is not None,
            quarantined=len(ledger.quarantined()),
        )
    except LedgerUnavailable as fault:
        return replace(found, problems=(str(fault),))


def _may_be_there(file: Path) -> bool:
    """Whether there is such a file, or nobody lets us see."""
    try:
        file.stat()
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True


def _live(scene: Scene) -> tuple[frozenset[int] | None, frozenset[int]]:
    """The leases that may have something outside the ledger, and the users of those that live."""
    ledger = scene.ledger
    if ledger is None:
        # No ledger at all: then no lease is anything's. One that we may not read: nothing is known.
        return (None if _may_be_there(scene.ledger_file) else frozenset()), frozenset()
    try:
        uids = frozenset(lease.holder.uid for lease in ledger.live())
        return ledger.present() | ledger.unfinished(), uids
    except LedgerUnavailable:
        return None, frozenset()


def _free(scene: Scene) -> Iterator[tuple[str, int]]:
    for path in (scene.config.state.directory, scene.at("/run"), scene.config.slurm.spool):
        there = next((one for one in (path, *path.parents) if one.exists()), None)
        if there is not None:
            told = os.statvfs(there)
            yield str(path), told.f_bavail * told.f_frsize


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _clock() -> tuple[bool | None, int]:
    """Whether the kernel calls its clock synchronised, and its greatest error in ms (struct timex)."""
    libc = ctypes.CDLL(None, use_errno=True)
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)
    if libc.adjtimex(timex) < 0:
        return None, 0
    maximum = int.from_bytes(timex.raw[_MAXERROR_AT : _MAXERROR_AT + 8], "little")
    status = int.from_bytes(timex.raw[_STATUS_AT : _STATUS_AT + 4], "little")
    return not status & _STA_UNSYNC, maximum // 1000


def _mounts(scene: Scene) -> Iterator[str]:
    try:
        raw = scene.at("/proc/self/mountinfo").read_bytes()
    except OSError:
        return
    for point, _, _ in mounts(raw, (b"tmpfs",)):
        if point.is_relative_to(HOOK):
            yield str(point)


def _others(scene: Scene) -> Iterator[str]:
    """The subtrees of other agents in which there is a lease."""
    mount = scene.mount
    for entry in sorted(mount.iterdir()) if mount else ():
        if not _INSTANCE.fullmatch(entry.name) or entry.name == f"{scene.stem}.slice":
            continue
        with contextlib.suppress(FileNotFoundError):  # it went meanwhile
            if any(child.is_dir() for child in entry.iterdir()):
                yield entry.name
