"""What the command line asks of a running agent, by the same API as everyone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpulease.client import DEFAULT_SOCKET
from gpulease.errors import UsageError, error_from
from gpulease.screen import safe
from gpulease.transport import Transport


def ask(
    socket: Path | None, method: str, target: str, body: Mapping[str, Any] | None = None, timeout: float = 10
) -> Any:
    """One call; the decoded answer, or the error that it stands for."""
    data = None if body is None else json.dumps(body).encode("ascii")
    answer = Transport(str(socket or DEFAULT_SOCKET), timeout=timeout).call(method, target, data)
    decoded = json.loads(answer.body) if answer.body else {}
    if answer.status >= 400:
        raise error_from(answer.status, decoded, answer.retry_after)
    return decoded


def left_lines(left: Mapping[str, Any]) -> str:
    """One line an object: whether it goes, kind, name and bytes, and why."""
    lines = [
        f"{'goes' if one['goes'] else 'stays'} {one['kind']} {one['name']} {one['size_bytes']}: {one['why']}"
        for one in left["objects"]
    ]
    none = f"lease {left['lease']}: {left['note'] or 'nothing of its uid is in shared memory'}"
    return "\n".join(safe(line) for line in lines or [none])


def devices_meant(socket: Path | None, device: str | None, every: bool) -> list[str]:
    """The keys of the devices that a command is for: more than one also where partitions share the name.

    Raises:
        UsageError: neither or both are said.
        Unknown: the name is of no device of this node, or is not clear.
    """
    if every == bool(device):
        raise UsageError("name one device, or say --all")
    found = ask(socket, "GET", f"/v1/devices?device={quote(device or '', safe='')}")["devices"]
    return [one["device"] for one in found]


def on_device(socket: Path | None, key: str, verb: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = ask(socket, "POST", f"/v1/devices/{quote(key)}/{verb}", body)
    return answer


def left_after_clearing(socket: Path | None, target: str, *, force: bool = False) -> list[dict[str, Any]]:
    """Clear a lease's or a device's quarantined slices; what is not well after that: `left_line` says it.

    Raises:
        UsageError: a device is to be cleared by force.
    """
    if force and not target.isdigit():
        raise UsageError("--force is for one lease: name it by its id")
    sick: list[dict[str, Any]] = []
    if target.isdigit():
        leases = [ask(socket, "POST", f"/v1/leases/{target}/clear", {"force": force})]
    else:
        leases, sick = _after_clearing(socket, devices_meant(socket, target, every=False))
    return sick + [
        {"lease": lease["id"], "device": one["device"], "state": one["state"], "reason": lease.get("reason")}
        for lease in leases
        for one in lease["slices"]
        if one["state"] == "quarantined"
    ]


def left_line(left: Mapping[str, Any]) -> str:
    """A slice, or a device, that is not well, and why."""
    whose = "" if left["lease"] is None else f"lease {left['lease']}, "
    return f"{whose}{left['device']}: still {left['state']}: {left['reason']}"


def journal_lines(journal: Mapping[str, Any]) -> str:
    """One line an effect, and below it what its evidence says."""
    lines: list[str] = []
    for effect in journal["effects"]:
        lines.append(f"{effect['kind']:10} {effect['state']}")
        for name, value in (effect["evidence"] or {}).items():
            lines.append(f"    {name}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(safe(line) for line in lines)


def _after_clearing(
    socket: Path | None, keys: Sequence[str]
) -> tuple[list[Mapping[str, Any]], list[dict[str, Any]]]:
    """Clear the devices; their leases that failed, and what is wrong with them still."""
    leases: dict[int, Mapping[str, Any]] = {}
    sick: list[dict[str, Any]] = []
    for key in keys:
        device = on_device(socket, key, "clear", {})
        if device["state"] == "unhealthy":
            sick.append({"lease": None, "device": key, "state": "unhealthy", "reason": device["reason"]})
        page = ask(socket, "GET", f"/v1/leases?state=failed&device={quote(key, safe='')}")
        leases |= {lease["id"]: lease for lease in page["leases"]}
    return list(leases.values()), sick
