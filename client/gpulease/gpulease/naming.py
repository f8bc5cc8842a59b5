"""The names that a device goes by, so that each command understands what the others print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpulease.errors import UsageError
from gpulease.models import Device

_MOST_NAMED = 8


def names_device(device: Device, name: str) -> bool:
    """Whether *name* is one that `gpulease numbering` prints of *device*, also without the PCI domain.

    A PCI address or unique id that several partitions share names each of them.
    """
    return name.strip().casefold().removeprefix("/dev/dri/") in _names(device)


def chosen(devices: Sequence[Device], names: Iterable[str]) -> tuple[Device, ...]:
    """The devices that *names* name; all of them where there are no names.

    Raises:
        UsageError: a name is of none of them.
    """
    wanted = [name for name in names if name.strip()]
    for name in wanted:
        if not any(names_device(device, name) for device in devices):
            raise UsageError(f"{name!r} names no device of this node; it has {_some(devices)}")
    return tuple(one for one in devices if not wanted or any(names_device(one, name) for name in wanted))


def _names(device: Device) -> set[str]:
    addresses = [address for address in (device.key, device.pci) if address]
    found = {*addresses, *(address.partition(":")[2] for address in addresses)}
    found.update(name for name in (device.uuid, device.render_node) if name)
    if device.unique_id:
        digits = f"{device.unique_id:016x}"
        found.update((digits, f"0x{digits}", f"gpu-{digits}"))
    return {name.casefold() for name in found}


def _some(devices: Sequence[Device]) -> str:
    keys = [device.key for device in devices[:_MOST_NAMED]]
    more = len(devices) - len(keys)
    return (", ".join(keys) or "none") + (f" and {more} more: see `gpulease numbering`" if more else "")
