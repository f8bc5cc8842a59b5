"""Which devices a request's filters let through.

A type is an exact product, model or target name, or a glob: never a bare substring, so that MI300 does not
take an MI300X in silence (Project-HAMi/HAMi#295). Empty items mean nothing (Project-HAMi/HAMi#2395).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache

from nodeagent.domain.device import Device, Inventory
from nodeagent.domain.errors import InvalidField
from nodeagent.domain.numbering import candidates, numbered, numbers
from nodeagent.domain.refusals import Code
from nodeagent.domain.request import Request, SliceRequest

_PCI = re.compile(
    r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])(?:/([0-9]{1,3}))?", re.ASCII
)
_UUID = re.compile(r"(?:gpu-|0x)?([0-9a-f]{1,16})", re.ASCII)
_MOST_NAMED = 8
_KNOWN = 4096  # names that are not read again: a request has each held against every device, many times
_BRANDS = frozenset({"amd", "ati", "instinct", "radeon"})  # words that a model name is known without


def check_devices(inventory: Inventory, request: Request) -> None:
    """Every device that the request names must be one of this node's (ROCm/container-toolkit#116).

    A deny list may name devices of other nodes: a site writes one list for all of its nodes.

    Raises:
        InvalidField: ``slices[i].device`` names no device of this node, or an item is a bare number.
    """
    for number, asked in enumerate(request.slices):
        for name in _items(asked.device):
            named(inventory, name, f"slices[{number}].device")
        for name in _items(asked.not_device):
            _check_clear(inventory, name, f"slices[{number}].not_device")


def named(inventory: Inventory, name: str, field: str) -> tuple[Device, ...]:
    """The devices that *name* names: several where partitions share it.

    Raises:
        InvalidField: *field* names none, or has a bare number, which each tool reads in its own way.
    """
    _check_clear(inventory, name, field)
    found = tuple(device for device in inventory.devices if names_device(device, name))
    if not found:
        raise InvalidField(field, f"{name!r} names no device of this node; it has {_some(inventory.devices)}")
    return found


def pinned(request: Request, inventory: Inventory) -> Request:
    """*request* with the numbers in its filters replaced by the keys of the devices that have them now.

    A request that waits would else get another device when these change, as they do with a partition mode.
    """
    return replace(
        request,
        slices=tuple(
            replace(
                asked,
                device=_pinned(asked.device, inventory),
                not_device=_pinned(asked.not_device, inventory),
            )
            for asked in request.slices
        ),
    )


def mismatch(device: Device, asked: SliceRequest) -> tuple[Code, str] | None:
    """The code and reason for which the filters keep *device* out; None where they let it through."""
    called = f"{device.product or 'unnamed'} ({device.gfx or 'target unknown'})"
    types, not_types = _items(asked.type), _items(asked.not_type)
    if types and not any(is_type(device, name) for name in types):
        return Code.CARD_TYPE_MISMATCH, f"is {called}, asked is {' or '.join(types)}"
    if denied := [name for name in not_types if is_type(device, name)]:
        return Code.CARD_TYPE_MISMATCH, f"is {called}, ruled out by {denied[0]!r}"
    if asked.partition and not device.divided:
        return Code.CARD_TYPE_MISMATCH, "is a whole card, asked is a compute partition"
    names, not_names = _items(asked.device), _items(asked.not_device)
    if names and not any(names_device(device, name) for name in names):
        return Code.CARD_UUID_MISMATCH, f"is not {' or '.join(names)}"
    if denied := [name for name in not_names if names_device(device, name)]:
        return Code.CARD_UUID_MISMATCH, f"ruled out by {denied[0]!r}"
    return None


def is_type(device: Device, name: str) -> bool:
    """Whether *name* is the product, the model (product less brand) or the gfx target, or a glob of one."""
    return is_called(device.product, device.gfx, name)


def is_called(product: str, gfx: str | None, name: str) -> bool:
    """`is_type` of what has this product name and target."""
    wanted = " ".join(name.casefold().split())
    words = product.casefold().split()
    model = words
    while model and model[0] in _BRANDS:
        model = model[1:]
    called = {" ".join(words), " ".join(model), (gfx or "").casefold()} - {""}
    return wanted in called or any(fnmatchcase(one, wanted) for one in called)


def names_device(device: Device, name: str) -> bool:
    """Whether *name* means the device, in any spelling that a tool prints.

    Its key; its PCI address with or without domain and partition; the unique id as ``GPU-<hex>``, bare or 0x
    hex or decimal; a DRM node; any alias; a number with its world, as ``rocr:0``: see `numbering`. ``pci:``,
    ``uuid:`` and ``gpu:`` may stand before what they are. A PCI address or a unique id that several
    partitions share means each of them.
    """
    wanted = name.strip().casefold()
    if wanted in _spellings(device.key, device.uuid, device.aliases):
        return True
    if number := numbered(wanted):
        return numbers(device).get(number[0]) == number[1]
    kind, _, rest = wanted.partition(":")
    if kind == "pci":
        return _is_pci(device, rest)
    if kind in ("uuid", "gpu"):
        return rest in device.aliases or _is_unique_id(device, rest)
    return _is_pci(device, wanted) or _is_unique_id(device, wanted)


@lru_cache(_KNOWN)
def _spellings(key: str, uuid: str | None, aliases: tuple[str, ...]) -> frozenset[str]:
    return frozenset(spelling.casefold() for spelling in (key, uuid or key, *aliases))


def _is_pci(device: Device, wanted: str) -> bool:
    asked, own = _address(wanted), _address(device.pci.casefold())
    if not asked or not own:
        return False
    domain, address, partition = asked
    return (
        address == own[1]
        and (domain is None or domain == (own[0] or 0))
        and (partition is None or partition == device.partition)
    )


@lru_cache(_KNOWN)
def _address(text: str) -> tuple[int | None, tuple[int, ...], int | None] | None:
    """Domain, bus with device and function, and partition of a PCI address; None where it is none."""
    found = _PCI.fullmatch(text)
    if found is None:
        return None
    domain, *address, partition = found.groups()
    return (
        None if domain is None else int(domain, 16),
        tuple(int(part, 16) for part in address),
        None if partition is None else int(partition),
    )


def _is_unique_id(device: Device, wanted: str) -> bool:
    if not device.unique_id:
        return False
    if wanted == str(device.unique_id):
        return True
    return _unique_id(wanted) == device.unique_id


@lru_cache(_KNOWN)
def _unique_id(wanted: str) -> int | None:
    spelled = _UUID.fullmatch(wanted)
    return int(spelled[1], 16) if spelled else None


def _check_clear(inventory: Inventory, name: str, field: str) -> None:
    """Raises InvalidField where *name* is a number that is nothing but somebody's index of a device."""
    meant = candidates(name, inventory.devices)
    if not meant or any(names_device(device, name) for device in inventory.devices):
        return
    spelled = [f"{', '.join(names)} ({key})" for key, names in list(meant.items())[:_MOST_NAMED]]
    raise InvalidField(field, f"{name!r} alone is not clear: it may be {' or '.join(spelled)}; write which")


def _pinned(names: Iterable[str], inventory: Inventory) -> tuple[str, ...]:
    keys: list[str] = []
    for name in names:
        found = [one.key for one in inventory.devices if numbered(name) and names_device(one, name)]
        keys += found or [name]
    return tuple(keys)


def _some(devices: Sequence[Device]) -> str:
    keys = [device.key for device in devices[:_MOST_NAMED]]
    more = len(devices) - len(keys)
    return (", ".join(keys) or "none") + (f" and {more} more" if more else "")


def _items(names: Iterable[str]) -> list[str]:
    return [name.strip() for name in names if name.strip()]
