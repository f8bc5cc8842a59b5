"""Where a lease's slices go, or why they go nowhere. The same state and request give the same answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nodeagent.domain.device import Inventory
from nodeagent.domain.fitting import Offer, Site, fit
from nodeagent.domain.lease import HeldSlice, PlacedSlice
from nodeagent.domain.ownership import Asker, barred
from nodeagent.domain.policy import Assigner, Group, Links, Surroundings, ranked
from nodeagent.domain.refusals import Code, DeviceRefusal, Refusal
from nodeagent.domain.request import Request, SliceRequest
from nodeagent.domain.selectors import check_devices, mismatch
from nodeagent.domain.sizing import check_sizes
from nodeagent.domain.usage import earliest_end, leases_of, usage_by_device

_ORDER = {code: number for number, code in enumerate(Code)}
_OWNED = (Code.OWNED_BY_SLURM, Code.OWNED_LOCALLY, Code.RESERVED_FOR_OTHERS)
_NEXT_ACT = {
    Code.OWNED_BY_SLURM: (
        "ask Slurm: srun --gres=shard:1 (inside a job run the program as it is: a job's lease cannot be"
        " divided further); or have an administrator set devices.owner, or name the device, without --wait"
    ),
    Code.OWNED_LOCALLY: "take the device out of gres.conf, or set devices.owner to auto",
    Code.RESERVED_FOR_OTHERS: (
        "ask for another device, or have an administrator add you to devices.reserved; administrators name"
        " the device, without --wait"
    ),
    Code.CARD_NOT_HEALTH: "see `gpulease devices` for what is wrong with the device, or ask for another",
    Code.CARD_CORDONED: "wait until an administrator ends the drain, or ask for another device",
    Code.CARD_TYPE_MISMATCH: "see `gpulease devices` for the products here; globs such as 'MI300*' work",
    Code.CARD_UUID_MISMATCH: "see `gpulease devices` for the devices here, or drop --device and --not-device",
    Code.NUMA_NOT_FIT: "ask for fewer devices, or drop --numa-bind",
    Code.LINK_NOT_FIT: "ask for fewer devices, or drop --link-bind",
    Code.INSUFFICIENT_DEVICE: "ask for fewer devices, or wait for one with --wait",
    Code.NO_DEVICE: "run this on a node with an AMD GPU; `nodeagent doctor` says what was looked for",
}


@dataclass(frozen=True, slots=True)
class _Answers:
    """What the devices said to one slice request."""

    asked: SliceRequest
    offers: tuple[Offer, ...]
    refusals: tuple[DeviceRefusal, ...]


def place(
    inventory: Inventory,
    held: Sequence[HeldSlice],
    request: Request,
    *,
    shared_cu_percent: float = 25,
    asker: Asker | None = None,
) -> tuple[PlacedSlice, ...] | Refusal:
    """Slices for all of *request*, in its order, or one refusal: never a part of it.

    Args:
        held: every slice that is not free, those being cleaned or quarantined included.
        asker: who asks, which matters where devices have an owner; a process where it is left out.

    Raises:
        InvalidField: the request names a device that this node does not have, or cannot be sized.
    """
    check_sizes(request)
    if not inventory.devices:
        return Refusal(Code.NO_DEVICE, "the node has no AMD GPU", _NEXT_ACT[Code.NO_DEVICE])
    check_devices(inventory, request)
    usage = usage_by_device(inventory.devices, held)
    sites = [Site(device, inventory.pool(device.pool), usage[device.key]) for device in inventory.devices]
    asker = asker or Asker()
    answers = [_ask(sites, asked, request, shared_cu_percent, asker) for asked in request.slices]
    for number, answer in enumerate(answers):
        if len(answer.offers) < answer.asked.count:
            return _too_few(inventory, request, number, answer)
    assigner = Assigner.of(request, Links(inventory.devices), _room(sites))
    around = Surroundings.of(sites)
    groups = [
        Group(answer.asked.count, ranked(answer.offers, request.placement, around)) for answer in answers
    ]
    choice = assigner.assign(groups)
    if choice is None:
        return _no_assignment(sites, answers, groups, assigner)
    return tuple(offer.placed for offers in choice for offer in offers)


def _ask(
    sites: Sequence[Site], asked: SliceRequest, request: Request, shared_cu_percent: float, asker: Asker
) -> _Answers:
    said = [
        barred(site.device, asked, asker) or fit(site, asked, request.placement, shared_cu_percent)
        for site in sites
    ]
    offers = tuple(one for one in said if isinstance(one, Offer))
    return _Answers(asked, offers, tuple(one for one in said if isinstance(one, DeviceRefusal)))


def _room(sites: Sequence[Site]) -> dict[str, int]:
    return {
        site.pool.key: max(0, site.pool.grantable_bytes - site.usage.pool_bytes)
        for site in sites
        if site.pool
    }


def _too_few(inventory: Inventory, request: Request, number: int, answer: _Answers) -> Refusal:
    which = f"slices[{number}]: " if len(request.slices) > 1 else ""
    count, fits, total = answer.asked.count, len(answer.offers), len(inventory.devices)
    if fits or count > total:
        code = Code.INSUFFICIENT_DEVICE
        why = f"asks {count} devices, {fits} of the node's {total} fit now"
        if answer.refusals:
            why += f"; {_example(answer.refusals[:1], total)}"
        if count > total:
            return Refusal(code, which + why, "ask for fewer devices: the node has no more", answer.refusals)
    else:
        relevant = _relevant(inventory, answer)
        code = _dominating(relevant)
        why = _example([one for one in relevant if one.code is code], total)
    return Refusal(code, which + why, _next_act(code, answer.refusals), answer.refusals)


def _relevant(inventory: Inventory, answer: _Answers) -> Sequence[DeviceRefusal]:
    """Refusals of the devices that the request's filters admit; of all where they admit none.

    Another owner's devices count only where there are no others: waiting for them is in vain.
    """
    admitted = {device.key for device in inventory.devices if mismatch(device, answer.asked) is None}
    filtered = [one for one in answer.refusals if one.device in admitted] or answer.refusals
    return [one for one in filtered if one.code not in _OWNED] or filtered


def _dominating(refusals: Sequence[DeviceRefusal]) -> Code:
    """The code that most devices gave; of equals the one checked last, since such a device came closest."""
    counts = Counter(one.code for one in refusals)
    return max(counts, key=lambda code: (counts[code], _ORDER[code]))


def _example(refusals: Sequence[DeviceRefusal], total: int) -> str:
    first = refusals[0]
    if len(refusals) == 1:
        return f"{first.device}: {first.why}"
    return f"{len(refusals)} of {total} devices, {first.device} for one: {first.why}"


def _next_act(code: Code, refusals: Sequence[DeviceRefusal]) -> str:
    if code in _NEXT_ACT:
        return _NEXT_ACT[code]
    blockers = sorted({lease for one in refusals if one.code is code for lease in one.blockers})
    if not blockers:
        return "ask for less: no device here has that much even when idle"
    named = ", ".join(map(str, blockers[:3])) + (" …" if len(blockers) > 3 else "")
    if any("(quarantined)" in one.why for one in refusals):
        return f"wait for lease {named} with --wait, or have an administrator run `nodeagent clear`"
    if code is Code.EXCLUSIVE_CONFLICT:
        return f"wait for lease {named} with --wait, or ask for a part of a device that nobody has alone"
    if code is Code.TIME_SLICING_EXHAUSTED:
        return f"wait for lease {named} with --wait, or take another device; against queues, fewer --queues"
    return f"wait for lease {named} with --wait, or ask for less"


def _no_assignment(
    sites: Sequence[Site], answers: Sequence[_Answers], groups: Sequence[Group], assigner: Assigner
) -> Refusal:
    """Each slice request has devices enough by itself; find the constraint that keeps them apart."""
    code = _binding(groups, assigner)
    wanted = sum(answer.asked.count for answer in answers)
    fitting = {offer.device.key: offer for answer in answers for offer in answer.offers}
    why = {
        Code.NUMA_NOT_FIT: f"no one NUMA node has {wanted} fitting devices"
        + (" with a direct XGMI link between every two of them" if assigner.link_bind else ""),
        Code.LINK_NOT_FIT: f"no {wanted} fitting devices have a direct XGMI link between every two of them",
        Code.INSUFFICIENT_MEMORY: "devices enough fit one by one, but their pools have not the bytes for all",
        Code.INSUFFICIENT_DEVICE: f"asks {wanted} devices in all, each slice on one of its own; too few fit",
    }[code]
    refused = {one.device: one for answer in answers for one in answer.refusals if one.device not in fitting}
    devices = tuple(refused.get(site.device.key) or _unassigned(code, site) for site in sites)
    return Refusal(code, why, _next_act(code, devices), devices)


def _binding(groups: Sequence[Group], assigner: Assigner) -> Code:
    """The code of the first constraint without which the groups could be assigned."""
    endless = dict.fromkeys(assigner.room, 1 << 80)

    def possible(*, numa: bool = False, link: bool = False, memory: bool = False) -> bool:
        relaxed = replace(
            assigner,
            numa_bind=assigner.numa_bind and not numa,
            link_bind=assigner.link_bind and not link,
            room=endless if memory else assigner.room,
        )
        return relaxed.assign(groups) is not None

    if assigner.numa_bind and possible(numa=True):
        return Code.NUMA_NOT_FIT
    if assigner.link_bind and possible(link=True):
        return Code.LINK_NOT_FIT
    if assigner.numa_bind and assigner.link_bind and possible(numa=True, link=True):
        return Code.NUMA_NOT_FIT
    return (
        Code.INSUFFICIENT_MEMORY if possible(numa=True, link=True, memory=True) else Code.INSUFFICIENT_DEVICE
    )


def _unassigned(code: Code, site: Site) -> DeviceRefusal:
    """Why a device that would fit by itself does not serve."""
    device, usage = site.device, site.usage
    if code is Code.NUMA_NOT_FIT:
        node = "of unknown NUMA node" if device.numa_node is None else f"on NUMA node {device.numa_node}"
        return DeviceRefusal(device.key, code, f"fits, but is {node}")
    if code is Code.LINK_NOT_FIT:
        linked = ", ".join(link.device for link in device.peers if link.kind == "xgmi") or "nothing"
        return DeviceRefusal(device.key, code, f"fits, but is linked by XGMI to {linked} only")
    if code is Code.INSUFFICIENT_MEMORY:
        return DeviceRefusal(
            device.key,
            code,
            f"fits, but pool {device.pool} has not the bytes for every slice",
            leases_of(usage.pooled),
            earliest_end(usage.pooled),
        )
    return DeviceRefusal(device.key, code, "fits, but another slice of the request needs it")
