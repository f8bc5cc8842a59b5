"""The node at a glance, from the agent's own documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulease.screen import safe
from nodeagent.cli.asking import ask

Document = Mapping[str, Any]
LIVE = "queued,preparing,active,lost,releasing"
MOST = 10_000  # leases that are listed
_PAGE = 500
_GIB = float(2**30)


@dataclass(frozen=True, slots=True)
class Overview:
    """The node, its devices, its live leases, and those that ended with a slice in quarantine."""

    node: Document
    devices: Sequence[Document]
    leases: Sequence[Document]
    unclean: Sequence[Document]

    @classmethod
    def asked(cls, socket: Path | None) -> Overview:
        """Raises GpuleaseError where the agent does not answer."""
        failed = _leases(socket, "failed")
        return cls(
            ask(socket, "GET", "/v1/node"),
            ask(socket, "GET", "/v1/devices")["devices"],
            _leases(socket, LIVE),
            [one for one in failed if any(each["state"] == "quarantined" for each in one["slices"])],
        )

    def to_json(self) -> dict[str, Any]:
        """The node's document, and beside its fields the three lists."""
        return {**self.node, "devices": self.devices, "leases": self.leases, "quarantined": self.unclean}


def lines(found: Overview) -> str:
    """For a terminal."""
    parts = (_node, _enforcement, _drains, _tiers, _devices, _leases_told, _quarantine, _skipped)
    return "\n".join(safe(f"{name:12}{text}") for part in parts for name, text in part(found))


def _node(found: Overview) -> Iterator[tuple[str, str]]:
    node = found.node
    yield "node", f"{node['name']} ({node['machine']})"
    yield (
        "agent",
        f"{node['version']}, {'ready' if node['ready'] else 'grants nothing: ' + str(node['reason'])}",
    )


def _enforcement(found: Overview) -> Iterator[tuple[str, str]]:
    node, bypass = found.node, found.node.get("bypass")
    yield "mode", ", ".join(f"{kind} {mode}" for kind, mode in (node.get("modes") or {}).items())
    if bypass:
        until = f"since {bypass['since']} until {bypass['until']}"
        yield "BYPASS", f"nothing is enforced, {until}, by uid {bypass['uid']}: {bypass['reason']}"
    if node.get("bypass_trouble"):
        yield "bypass", f"not believed: {node['bypass_trouble']}"
    if node.get("opened"):
        yield "opened", f"outside leases: {node['opened']}"


def _drains(found: Overview) -> Iterator[tuple[str, str]]:
    for one in found.node.get("drains") or ():
        until = f" until {one['until']}" if one["until"] else ""
        where = one["device"] or "the whole node"
        yield (
            "draining",
            f"{where} since {one['since']}{until}, by uid {one['uid']}: {one['reason'] or 'no reason given'}",
        )


def _tiers(found: Overview) -> Iterator[tuple[str, str]]:
    present = [one["name"] for one in found.node["tiers"] if one["present"]]
    yield "enforces by", ", ".join(present) or "nothing"
    for one in found.node["tiers"]:
        if not one["present"]:
            yield "not by", f"{one['name']}: {one['why']}"


def _devices(found: Overview) -> Iterator[tuple[str, str]]:
    for one in found.devices:
        free, foreign = one["free"], one.get("foreign_bytes") or 0
        text = f"{one['device']} {one['product']}: {one['state']}, free {free['cus']} of {one['cus']} CUs,"
        text += f" {free['vram_bytes'] / _GIB:.1f} of {one['grantable_bytes'] / _GIB:.1f} GiB"
        text += f"; FOREIGN USE {foreign / _GIB:.1f} GiB" if foreign else ""
        yield "device", text + (f" ({one['reason']})" if one["reason"] else "")


def _leases_told(found: Overview) -> Iterator[tuple[str, str]]:
    if not found.leases:
        yield "leases", "none"
    kinds = Counter((one["holder"]["kind"], one["state"], _observed(one)) for one in found.leases)
    for (kind, state, observed), count in sorted(kinds.items()):
        yield "leases", f"{count} {kind} {state}{', observed: hold nothing' if observed else ''}"


def _quarantine(found: Overview) -> Iterator[tuple[str, str]]:
    for one in found.unclean:
        where = ", ".join(each["device"] for each in one["slices"] if each["state"] == "quarantined")
        yield "quarantine", f"lease {one['id']} on {where}, since {one.get('ended_at')}: {one.get('reason')}"


def _skipped(found: Overview) -> Iterator[tuple[str, str]]:
    for one in found.node["skipped"]:
        yield "skipped", f"KFD node {one['kfd_node']}: {one['reason']}"


def _observed(lease: Document) -> bool:
    return lease["state"] == "active" and not lease["slices"]


def _leases(socket: Path | None, states: str) -> list[Document]:
    found: list[Document] = []
    after = 0
    while len(found) < MOST:
        page = ask(socket, "GET", f"/v1/leases?state={states}&after={after}&limit={_PAGE}")["leases"]
        found += page
        if len(page) < _PAGE:
            break
        after = page[-1]["id"]
    return found
