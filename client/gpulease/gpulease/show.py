"""What the reading commands print, from typed answers to lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Optional

from gpulease.drawing import QUARANTINED, SHARED, colour_of, coloured, draw, letters
from gpulease.errors import AnswerError, GpuleaseError, Refused
from gpulease.models import Bound, Device, Event, Inside, Lease, Node, Quota, Slice, text
from gpulease.screen import Coloured, Screen, safe
from gpulease.sizes import human_size
from gpulease.tables import state, table

_FILTERED = ("CardUuidMismatch", "CardTypeMismatch")
_MOST_REASONS = 8
_ID_SHOWN = 16  # characters of a container's id
_RESOURCES = {"vram_bytes": "VRAM", "cus": "CUs", "queue_slots": "queue slots"}
_GIB = 1 << 30


def show_status(screen: Screen, node: Node, devices: Sequence[Device], leases: Sequence[Lease]) -> None:
    """The node in a line, each device as a bar, the leases below as its legend."""
    _node_line(screen, node, devices, leases)
    names = letters(leases)
    bars = _bars(screen, devices, leases, names)
    if any(SHARED in cells for cells in bars):
        screen.line(f"{SHARED} the device's shared set: several leases have these CUs")
    if any(QUARANTINED in cells for cells in bars):
        screen.line(f"{QUARANTINED} quarantined: not proved clean, so not granted")
    if leases:
        screen.line()
        rows = [_legend(letter_of(lease, names), lease) for lease in leases]
        table(screen, ("", "LEASE", "STATE", "HOLDER", "CUS", "VRAM", "ENDS"), rows, shrink=3)


def _node_line(screen: Screen, node: Node, devices: Sequence[Device], leases: Sequence[Lease]) -> None:
    facts = [
        f"node {node.name or '?'}",
        node.machine,
        f"agent {node.version}" if node.version else None,
        "not ready" if node.ready is False else "ready" if node.ready else None,
        _count(len(devices), "device"),
        _count(len(leases), "lease"),
    ]
    screen.line(Coloured(", ".join(fact for fact in facts if fact), "bold"))
    if node.reason:
        screen.line(Coloured(f"  {node.reason}", "red"))


def _bars(
    screen: Screen, devices: Sequence[Device], leases: Sequence[Lease], names: dict[int, str]
) -> list[str]:
    key_width = max((len(safe(device.key)) for device in devices), default=0)
    tails = [_tail(device) for device in devices]
    # Two brackets, two gaps.
    width = max(8, screen.columns - key_width - max((len(tail) for tail in tails), default=0) - 4)
    bars = [draw(device, leases, names, width, screen.free) for device in devices]
    widest = max((len(bar.cells) for bar in bars), default=0)
    for device, bar, tail in zip(devices, bars, tails):  # noqa: B905 -- Python 3.9 has no strict=
        pad = " " * (widest - len(bar.cells))
        key = safe(device.key).ljust(key_width)
        screen.line(f"{key} [", *coloured(bar.cells, names, screen.free), f"]{pad} {tail}")
        if device.state != "healthy":
            screen.line(Coloured(f"  {device.state}: {device.reason or 'no reason given'}", "red"))
    _scale(screen, {bar.cus_per_cell for bar in bars if bar.cells}, any(bar.guessed for bar in bars))
    return [bar.cells for bar in bars]


def _scale(screen: Screen, sizes: set[int], guessed: bool) -> None:
    if sizes:
        span = str(min(sizes)) if len(sizes) == 1 else f"{min(sizes)} to {max(sizes)}"
        plural = "" if sizes == {1} else "s"
        screen.line(
            f"{screen.free} free; one cell is {span} CU{plural}; on the right what is free of what there is"
        )
    if guessed:
        screen.line("others' leases show how many CUs they have, not which: their cells are guessed")


def _tail(device: Device) -> str:
    """What is free of what may be granted, short: on 80 columns an MI300X keeps a cell per 8 CUs."""
    free, grantable = (
        "?" if size is None else str(size // _GIB)
        for size in (device.free.vram_bytes, device.grantable_bytes)
    )
    return f"{_known(device.free.cus)}/{device.cus} CU {free}/{grantable} GiB"


def letter_of(lease: Lease, names: dict[int, str]) -> Coloured:
    return Coloured(names[lease.id], colour_of(names[lease.id], names))


def _legend(letter: Coloured, lease: Lease) -> tuple[object, ...]:
    granted = sum(one.cu_count or 0 for one in lease.slices)
    known = [one.effective_cus for one in lease.slices if one.effective_cus is not None]
    effective = f" eff. {sum(known)}" if known else ""  # of others' leases it is not shown
    vram = human_size(sum(one.vram_bytes or 0 for one in lease.slices))
    unclean = any(one.state == "quarantined" for one in lease.slices)
    return (
        letter,
        lease.id,
        state("quarantined" if unclean else lease.state, _beside(lease)),
        holder(lease),
        f"{granted}{effective}",
        vram,
        lease.expires_at or "-",
    )


def holder(lease: Lease) -> str:
    """``process:4711 uid 1000``; of others' leases the agent shows no more than the kind."""
    if lease.holder.id is None:
        return f"{lease.holder.kind or 'somebody'}:*"
    uid = "" if lease.holder.uid is None else f" uid {lease.holder.uid}"
    return f"{lease.holder.kind}:{lease.holder.id}{uid}"


def show_devices(screen: Screen, devices: Sequence[Device]) -> None:
    titles = ("DEVICE", "PRODUCT", "GFX", "CUS", "ROW", "VRAM", "SLOTS", "NUMA", "HIVE", "OWNER", "STATE")
    rows = [
        (
            device.key,
            device.product or "?",
            device.gfx or "?",
            f"{_known(device.free.cus)}/{device.cus}",
            _known(device.row),
            f"{_gib(device.free.vram_bytes)}/{_gib(device.vram_bytes)} GiB",
            f"{_known(device.free.queue_slots)}/{_known(device.queue_slots)}",
            _known(device.numa_node),
            device.hive or "-",
            device.owner,
            state(device.state, device.reason),
        )
        for device in devices
    ]
    table(screen, titles, rows)


def show_numbering(screen: Screen, devices: Sequence[Device], local: Mapping[str, int]) -> None:
    """Every number and name that tools use for the same device, side by side.

    *local*: by key, what programs of one lease call its devices.
    """
    titles = ("DEVICE", "PCI", "CARD", "RENDER", "KFD", "GPU_ID", "ROCR", "HIP", "SMI", "SLURM", "LOCAL")
    rows = [
        (
            device.key,
            device.pci or "-",
            device.card or "-",
            device.render_node or "-",
            _known(device.kfd_node),
            _known(device.gpu_id),
            _known(device.ordinal),
            _known(device.hip_index),
            _known(device.smi_index),
            _known(device.slurm_index),
            _known(local.get(device.key)),
            device.uuid or (f"0x{device.unique_id:016x}" if device.unique_id else "-"),
        )
        for device in devices
    ]
    table(screen, (*titles, "UUID"), rows)


def show_lease(screen: Screen, lease: Lease) -> None:
    screen.line(Coloured(f"lease {lease.id}: {lease.state}", "bold"))
    facts: dict[str, object] = {
        "reason": lease.reason,
        "holder": holder(lease),
        "anchor": " ".join(f"{name}={value}" for name, value in lease.anchor.items() if value is not None),
        "guarantee": " ".join(f"{name}={value}" for name, value in lease.guarantee.items()),
        "cgroup": lease.cgroup,
        "queue": str(lease.queue or ""),
        "waits to": lease.queue.gives_up_at if lease.queue else None,
        "idle": _idle(lease),
        "denied": f"{lease.denied} requests for more, as its programs count" if lease.denied else None,
        "created": lease.created_at,
        "ends": None if lease.ended_at else lease.expires_at,
        "ended": lease.ended_at,
    }
    for name, value in facts.items():
        if value:
            screen.line(f"  {name:<10}{value}")
    for one in lease.slices:
        screen.line(
            f"  slice     {one.device}: {_known(one.cu_count)} CUs ({one.cus or 'which ones is not shown'}), "
            f"asked {_known(one.cu_requested)}, effective {_known(one.effective_cus)} (by model); "
            f"{human_size(one.vram_bytes)}{_told(one)}; {_known(one.queue_slots)} "
            f"queue slot{'' if one.queue_slots == 1 else 's'}; "
            f"{one.state or '?'}"
        )
    for variable, setting in (lease.environment or {}).items():
        screen.line(f"  {'unset ' + variable if setting is None else variable + '=' + setting}")


def _beside(lease: Lease) -> Optional[str]:
    """What is said with its state."""
    return lease.queue.turn if lease.queue else "idle" if lease.idle else None


def _idle(lease: Lease) -> Optional[str]:
    since, ends = (text(lease.idle, name) for name in ("since", "ends_at"))
    return f"since {since}{f', ends {ends} unless it works' if ends else ''}" if since else None


def show_containers(screen: Screen, containers: Sequence[Inside]) -> None:
    """Those that were started from within a lease, below it."""
    for one in containers:
        named = (one.container or "not started yet")[:_ID_SHOWN]
        why = f" ({one.reason})" if one.reason else ""
        screen.line(f"  {'inside':<10}{one.engine or '?'} {named}: {one.state or '?'}{why}")


def _told(one: Slice) -> str:
    return "" if one.told_bytes is None else f", of which its programs tell {human_size(one.told_bytes)}"


def show_history(screen: Screen, leases: Sequence[Lease]) -> None:
    """Leases that ended, the last one below."""
    titles = ("LEASE", "STATE", "HOLDER", "DEVICES", "CUS", "VRAM", "FROM", "TO", "REASON")
    rows = [
        (
            lease.id,
            lease.state,
            holder(lease),
            ",".join(sorted({one.device for one in lease.slices})) or "-",
            sum(one.cu_count or 0 for one in lease.slices),
            human_size(sum(one.vram_bytes or 0 for one in lease.slices)),
            lease.created_at or "-",
            lease.ended_at or "-",
            lease.reason or "-",
        )
        for lease in leases
    ]
    table(screen, titles, rows)


def show_quotas(screen: Screen, quotas: Sequence[Quota], classes: Sequence[str]) -> None:
    """What counts towards each quota of the caller's, how much may, and the *classes* it may name."""
    rows = [
        (
            one.name,
            _RESOURCES.get(bound.resource, bound.resource),
            *map(_shown(bound), (bound.used, bound.most)),
        )
        for one in quotas
        for bound in one.bounds
    ]
    if rows:
        table(screen, ("QUOTA", "OF", "USED", "ALLOWED"), rows)
    else:
        screen.line("no quota holds for you")
    if classes:
        screen.line(f"classes that you may name (--class): {', '.join(map(safe, classes))}")


def _shown(bound: Bound) -> Callable[[int], str]:
    return human_size if bound.resource == "vram_bytes" else str


def show_lease_events(screen: Screen, events: Sequence[Event]) -> None:
    """What befell one lease, below it."""
    if events:
        screen.line("  events")
    for event in events:
        screen.line(f"    {event.at or '?'}  {_kind(screen, event)}  {event.reason or ''}".rstrip())


def _kind(screen: Screen, event: Event) -> str:
    return event.kind if event.count == 1 else f"{event.kind} {screen.times}{event.count}"


def show_event(screen: Screen, event: Event) -> None:
    facts = [
        event.at or "?",
        _kind(screen, event),
        f"lease {event.lease}" if event.lease is not None else None,
        event.device,
        f"uid {event.uid}" if event.uid is not None else None,
        event.reason,
    ]
    screen.line("  ".join(fact for fact in facts if fact))


def show_error(screen: Screen, error: GpuleaseError) -> None:
    """Everything known about the no; the last line is the one that scripts read."""
    if isinstance(error, Refused):
        for line in refusal_reasons(error, screen.times):
            screen.line(f"  {line}")
        if error.blockers:
            screen.line(f"  blocked by lease {', '.join(map(str, error.blockers))}")
        if error.earliest_at:
            screen.line(f"  the earliest of them ends at {error.earliest_at}")
        if error.next:
            screen.line(f"  next: {error.next}")
    where = getattr(error, "field", None)
    reason = " ".join(str(error).split())
    prefix = f"{where}: " if isinstance(error, AnswerError) and where and not reason.startswith(where) else ""
    screen.line(f"gpulease: {error.code}: {prefix}{reason}")


def refusal_reasons(error: Refused, times: str = "×") -> list[str]:
    """Why each device does not fit; devices with the same reason, or too many of them, in one line."""
    alike: dict[tuple[str, str], list[str]] = {}
    # Devices that the request itself leaves out say nothing, unless there are no others.
    wanted = [device for device in error.devices if device.get("code") not in _FILTERED]
    for device in wanted or error.devices:
        alike.setdefault((str(device.get("code")), _why(device)), []).append(str(device.get("device")))
    if len(alike) > _MOST_REASONS:
        by_code: dict[tuple[str, str], list[str]] = {}
        for (code, why), keys in alike.items():
            known = next((key for key in by_code if key[0] == code), (code, f"{why} (the first)"))
            by_code.setdefault(known, []).extend(keys)
        alike = by_code
    return [
        f"{keys[0] if len(keys) == 1 else f'{len(keys)} {times}'} {code}: {why}"
        for (code, why), keys in alike.items()
    ]


def _why(device: Mapping[str, object]) -> str:
    return str(device.get("why") or device.get("detail") or device.get("reason") or "no reason given")


def _known(value: Optional[int]) -> str:
    return "-" if value is None else str(value)


def _gib(size: Optional[int]) -> str:
    return "?" if size is None else f"{size / _GIB:.1f}".removesuffix(".0")


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")
