"""The rules, over what a death left: judged with nothing of the agent's own code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from .beside import sidecar_for
from .hooked import Limits
from .ledger_copy import PASSING, Lease, Ledger
from .outside import Outside


def at_any_instant(
    ledger: Ledger, outside: Outside, forgotten: Collection[int] = frozenset()
) -> Iterator[str]:
    """What must hold even in the moment of the death, before anything is recovered.

    *forgotten*: leases that a lost or restored ledger may not know until the next agent has looked.
    """
    yield from ledger.damage
    yield from _held_once(ledger)
    for lease in sorted(outside.leases | outside.sidecars.keys()):
        if lease not in ledger.leases:
            if lease not in forgotten:
                yield f"lease {lease} has changes outside and is not in the ledger"
        elif lease in outside.leases and not ledger.leases[lease].holds:
            yield f"lease {lease} has changes outside and its slices are free"
    yield from (told for told in outside.sidecars.values() if isinstance(told, str))


def when_answered(lease: Lease, outside: Outside) -> Iterator[str]:
    """What must hold once a grant, an attach or a renewal was answered: a lost ledger would not lose it."""
    if (told := outside.sidecars.get(lease.id)) != sidecar_for(lease):
        yield f"lease {lease.id}: its sidecar says {told}, and the ledger {sidecar_for(lease)}"


def when_started(before: Ledger, outside: Outside) -> Iterator[str]:
    """Nothing is kept beside the ledger of a lease that had ended *before* the start."""
    for lease in sorted(outside.sidecars):
        if lease in before.leases and not before.leases[lease].holds:
            yield f"orphan: the sidecar of lease {lease}, which had ended before this start"


def when_settled(ledger: Ledger, outside: Outside) -> Iterator[str]:
    """What must hold once an agent has started and looked: the outside is just what the ledger says."""
    yield from at_any_instant(ledger, outside)
    yield from outside.strays
    for lease in ledger.leases.values():
        if lease.state in PASSING or lease.state == "failed":
            yield f"lease {lease.id} is {lease.state} after the recovery"
        elif lease.state != "active" and lease.holds:
            yield f"lease {lease.id} is {lease.state} and its slices are not free"
    active = {lease.id: lease for lease in ledger.leases.values() if lease.state == "active"}
    ended = ledger.leases.keys() - active.keys()  # the next look takes their sidecars away
    hooked = [lease.id for lease in active.values() if lease.made("hook")]
    yield from _same("cgroup", active, outside.cgroups)
    yield from _same("hook's limits", hooked, outside.limits)
    yield from _same("hook's usage", hooked, outside.usage)
    yield from _same("sidecar", active, [lease for lease in outside.sidecars if lease not in ended])
    for lease in active.values():
        yield from _as_recorded(lease, outside)
        yield from when_answered(lease, outside)
    yield from _doors(active, outside)


@dataclass
class _Held:
    """What is held on the node, by what of it."""

    cus: defaultdict[tuple[str, int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    shared: dict[tuple[str, int], frozenset[int]] = field(default_factory=dict)
    bytes: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    slots: defaultdict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))

    def add(self, lease: Lease) -> None:
        for one in lease.slices:
            if one.state == "free":
                continue
            here = (one.device, one.epoch)
            self.bytes[one.pool] += one.vram_bytes
            self.slots[here] += one.queue_slots
            if not one.shared or self.shared.get(here) != one.cus:  # one set is held once, by all its sharers
                for cu in one.cus:
                    self.cus[(*here, cu)].append(lease.id)
            if one.shared:
                self.shared.setdefault(here, one.cus)


def _held_once(ledger: Ledger) -> Iterator[str]:
    held = _Held()
    for lease in ledger.leases.values():
        held.add(lease)
    for (device, _, cu), holders in held.cus.items():
        if len(holders) > 1:
            yield f"double grant: CU {cu} of {device} is held by leases {holders}"
    for pool, used in held.bytes.items():
        may = ledger.pools.get(pool, 0)  # a slice of no pool is damage, and told as that
        if used > may:
            yield f"double grant: {used} bytes of {pool} are held, {may} may be"
    for here, slots in held.slots.items():
        if slots > (may := ledger.slots.get(here, 0)):
            yield f"double grant: {slots} queue slots of {here[0]} are held of {may}"
    if set(ledger.held) != set(held.cus):
        yield f"the CUs that are held are not those of the slices: {len(ledger.held)}, {len(held.cus)}"


def _same(what: str, wanted: Collection[int], found: Collection[int]) -> Iterator[str]:
    for lease in sorted(set(found) - set(wanted)):
        yield f"orphan: the {what} of lease {lease}"
    for lease in sorted(set(wanted) - set(found)):
        yield f"lease {lease} is active without the {what}"


def _as_recorded(lease: Lease, outside: Outside) -> Iterator[str]:
    if lease.cgroup != (found := outside.cgroups.get(lease.id)):
        yield f"lease {lease.id}: its cgroup is {found}, and the ledger says {lease.cgroup}"
    if lease.id in outside.frozen:
        yield f"lease {lease.id} is active, and its cgroup is frozen"
    limits, usage = outside.limits.get(lease.id), outside.usage.get(lease.id)
    if limits is None or usage is None:
        return  # told already, where it should be
    devices = tuple((_shown(one.vram_bytes), len(one.cus)) for one in lease.slices)
    if limits != (wanted := Limits(lease.id, devices, usage.path)):
        yield f"lease {lease.id}: its limits are {limits}, not {wanted}"
    if usage.uid != lease.uid:
        yield f"lease {lease.id}: its usage is for uid {usage.uid} to write, and its holder is {lease.uid}"


def _doors(active: dict[int, Lease], outside: Outside) -> Iterator[str]:
    """A device node lets in just the users that have a lease on it; /dev/kfd those of any."""
    users: dict[str, set[int]] = {name: set() for name in outside.acls}
    for lease in active.values():
        for one in lease.slices:
            for name in (one.device.partition("/")[0], "kfd"):
                users[name] |= {lease.uid} - {0}
    for name, uids in users.items():
        if uids != outside.acls[name]:
            yield f"ACL: {name} lets in {sorted(outside.acls[name])}, and leases are held by {sorted(uids)}"


def _shown(vram_bytes: int) -> int:
    """What the hook is to hold a slice to: its bytes less 64 MiB or 1 %, whichever is more."""
    return max(0, vram_bytes - max(64 << 20, vram_bytes // 100))
