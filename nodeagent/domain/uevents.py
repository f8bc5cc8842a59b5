"""What the kernel's announcements of device changes (uevents) mean for leases."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# A change of these may be a device that came or went; amdgpu's partitions are devices of drm, too.
DEVICE_SUBSYSTEMS = frozenset({"drm", "kfd", "pci"})
COMING_AND_GOING = frozenset({"add", "remove", "bind", "unbind"})
_PCI = re.compile(r"(?<=/)[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?=/|$)")
_NO_NAME = re.compile(r"[^A-Za-z0-9._:+/-]")  # a task calls itself what it likes
TASK_CHARACTERS = 15  # TASK_COMM_LEN, less its NUL


@dataclass(frozen=True, slots=True)
class Uevent:
    """One announcement, as lib/kobject_uevent.c writes it; what it does not say is empty or None."""

    action: str
    subsystem: str
    devpath: str  # below /sys: "/devices/pci0000:00/0000:00:01.0/0000:c1:00.0/drm/card1"
    pci: str | None = None  # the last PCI function on that path
    wedged: str | None = None  # drm_dev_wedged_event(): how the driver got over it, or what has to be done
    pid: int | None = None  # of the task that hung the device, in the initial pid namespace
    task: str | None = None  # its name, other characters than a file name's replaced

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Uevent:
        """The event of these ``KEY=VALUE`` fields."""
        devpath, pid, task = fields.get("DEVPATH", ""), fields.get("PID", ""), fields.get("TASK", "")
        functions = _PCI.findall(devpath)
        return cls(
            action=fields.get("ACTION", ""),
            subsystem=fields.get("SUBSYSTEM", ""),
            devpath=devpath,
            pci=functions[-1] if functions else None,
            wedged=fields.get("WEDGED"),
            pid=int(pid) if pid.isascii() and pid.isdigit() else None,
            task=_NO_NAME.sub("?", task)[:TASK_CHARACTERS] or None,
        )


@dataclass(frozen=True, slots=True)
class Reset:
    """The card at *pci* was reset, with every device that it is divided into."""

    pci: str
    recovery: str  # "none": the driver got over it by itself
    pid: int | None = None
    task: str | None = None

    @property
    def guilty(self) -> str | None:
        """The task that is to blame, where the kernel knows it."""
        if self.pid is None:
            return self.task
        return f"{self.task or 'process'} ({self.pid})"


@dataclass(frozen=True, slots=True)
class Rescan:
    """A device may have come or gone."""


def meaning(event: Uevent) -> Reset | Rescan | None:
    """What *event* calls for; None: nothing.

    Of drm, a change may also be a monitor that was plugged in: only ``WEDGED=`` tells a reset. The devices of
    one XGMI hive that are reset together each announce their own.
    """
    if event.subsystem not in DEVICE_SUBSYSTEMS:
        return None
    if event.action in COMING_AND_GOING:
        return Rescan()
    if event.action != "change" or event.subsystem != "drm" or event.wedged is None:
        return None
    return Reset(event.pci, event.wedged, event.pid, event.task) if event.pci else Rescan()
