"""Which devices a request's filters let through.

A type is an exact product, model or target name, or a glob: never a bare substring, so that MI300 does not
take an MI300X in silence (Project-HAMi/HAMi#295). Empty items mean nothing (Project-HAMi/HAMi#2395).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from nodeagent.domain.device import Device, Inventory
from nodeagent.domain.errors import InvalidField
from nodeagent.domain.refusals import Code
from nodeagent.domain.request import Request, SliceRequest

_PCI = re.compile(
    r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])(?:/([0-9]{1,3}))?", re.ASCII
)
_RENDER = re.compile(r"(?:/dev/dri/)?(renderd[0-9]+)", re.ASCII)
_UUID = re.compile(r"(?:gpu-|0x)?([0-9a-f]{1,16})", re.ASCII)
_MOST_NAMED = 8
_BRANDS = frozenset({"amd", "ati", "instinct", "radeon"})  # words that a model name is known without


def check_devices(inventory: Inventory, request: Request) -> None:
    """Every device that the request names must be one of this node's (ROCm/container-toolkit#116).

    A deny list may name devices of other nodes: a site writes one list for all of its nodes.

    Raises:
        InvalidField: ``slices[i].device`` names no device of this node.
    """
    for number, asked in enumerate(request.slices):
        for name in _items(asked.device):
            if not any(names_device(device, name) for device in inventory.devices):
                raise InvalidField(
                    f"slices[{number}].device",
                    f"{name!r} names no device of this node; it has {_some(inventory.devices)}",
                )


def mismatch(device: Device, asked: SliceRequest) -> tuple[Code, str] | None:
    """The code and reason for which the filters keep *device* out; None where they let it through."""
    called = f"{device.product or 'unnamed'} ({device.gfx or 'target unknown'})"
    types, not_types = _items(asked.type), _items(asked.not_type)
    if types and not any(is_type(device, name) for name in types):
        return Code.CARD_TYPE_MISMATCH, f"is {called}, asked is {' or '.join(types)}"
    if denied := [name for name in not_types if is_type(device, name)]:
        return Code.CARD_TYPE_MISMATCH, f"is {called}, ruled out by {denied[0]!r}"
    names, not_names = _items(asked.device), _items(asked.not_device)
    if names and not any(names_device(device, name) for name in names):
        return Code.CARD_UUID_MISMATCH, f"is not {' or '.join(names)}"
    if denied := [name for name in not_names if names_device(device, name)]:
        return Code.CARD_UUID_MISMATCH, f"ruled out by {denied[0]!r}"
    return None


def is_type(device: Device, name: str) -> bool:
    """Whether *name* is the product, the model (product less brand) or the gfx target, or a glob of one."""
    wanted = " ".join(name.casefold().split())
    product = device.product.casefold().split()
    model = product
    while model and model[0] in _BRANDS:
        model = model[1:]
    called = {" ".join(product), " ".join(model), (device.gfx or "").casefold()} - {""}
    return wanted in called or any(fnmatchcase(one, wanted) for one in called)


def names_device(device: Device, name: str) -> bool:
    """Whether *name* means the device, in any spelling that a tool prints.

    Its key; its PCI address with or without domain and partition; the unique id as ``GPU-<hex>``, bare or 0x
    hex or decimal; the render node; any alias. A PCI address or a unique id that several partitions share
    means each of them.
    """
    wanted = name.strip().casefold()
    if wanted in {device.key.casefold(), (device.uuid or device.key).casefold()}:
        return True
    if wanted in {alias.casefold() for alias in device.aliases}:
        return True
    if render := _RENDER.fullmatch(wanted):
        return render[1] == (device.render_node or "").casefold()
    return _is_pci(device, wanted) or _is_unique_id(device, wanted)


def _is_pci(device: Device, wanted: str) -> bool:
    asked, own = _PCI.fullmatch(wanted), _PCI.fullmatch(device.pci.casefold())
    if not asked or not own:
        return False
    domain, *address, partition = asked.groups()
    return (
        [int(part, 16) for part in address] == [int(part, 16) for part in own.groups()[1:4]]
        and (domain is None or int(domain, 16) == int(own[1] or "0", 16))
        and (partition is None or int(partition) == device.partition)
    )


def _is_unique_id(device: Device, wanted: str) -> bool:
    if not device.unique_id:
        return False
    if wanted == str(device.unique_id):
        return True
    spelled = _UUID.fullmatch(wanted)
    return spelled is not None and int(spelled[1], 16) == device.unique_id


def _some(devices: Sequence[Device]) -> str:
    keys = [device.key for device in devices[:_MOST_NAMED]]
    more = len(devices) - len(keys)
    return (", ".join(keys) or "none") + (f" and {more} more" if more else "")


def _items(names: Iterable[str]) -> list[str]:
    return [name.strip() for name in names if name.strip()]
