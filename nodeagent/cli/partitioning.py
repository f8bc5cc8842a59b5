"""Partition modes on the command line: asked of the running agent, and compared with the settings."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpulease.errors import Refused, UsageError
from gpulease.screen import safe
from nodeagent import config as settings
from nodeagent.cli.asking import ask
from nodeagent.domain.errors import InvalidField
from nodeagent.domain.partition import Card, Choice, Modes, choices

LONGEST_SECONDS = 120  # in which a card is to come back
CALL_SECONDS = 60  # of one call: the kernel starts KFD anew on the card before it returns
_TITLES = ("CARD", "PRODUCT", "MODE", "CAN BE", "MEMORY", "CAN BE", "ALLOC", "DEVICES")


def answer(socket: Path | None) -> Mapping[str, Any]:
    found: Mapping[str, Any] = ask(socket, "GET", "/v1/partitions")
    return found


def card_lines(found: Mapping[str, Any]) -> str:
    """One line a card."""
    rows = [_TITLES, *(_row(raw) for raw in found["cards"])]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_TITLES))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _row(raw: Mapping[str, Any]) -> tuple[str, ...]:
    mode = raw["compute_partition"] or "-"
    return tuple(
        safe(cell)
        for cell in (
            raw["pci"],
            raw["product"] or "?",
            f"{mode} > {raw['switching']}" if raw["switching"] else mode,
            " ".join(raw["compute_partitions"]) or "-",
            raw["memory_partition"] or "-",
            " ".join(raw["memory_partitions"]) or "-",
            raw["memory_alloc_mode"] or "-",
            str(len(raw["devices"])),
        )
    )


def card_named(socket: Path | None, name: str) -> str:
    """The PCI address of the card that *name*, any name of a device of it, means.

    Raises:
        UsageError: it means devices of several cards.
    """
    devices = ask(socket, "GET", f"/v1/devices?device={quote(name, safe='')}")["devices"]
    found = sorted({one["pci"] for one in devices})
    if len(found) != 1 or not name.strip():
        raise UsageError(f"{name!r} names {len(found)} cards: name one")
    return str(found[0])


def put(socket: Path | None, pci: str, mode: str) -> str:
    """Have the card put into *mode*, and wait until it is; what to say then.

    Raises:
        Refused: it is in use, and by whom.
        UsageError: it came back in another mode, or not in time.
    """
    target, body = f"/v1/cards/{quote(pci)}/partition", {"mode": mode.lower()}
    raw = ask(socket, "POST", target, body, timeout=CALL_SECONDS)
    until = time.monotonic() + LONGEST_SECONDS
    while raw["switching"] and time.monotonic() < until:
        time.sleep(1)
        raw = next((one for one in answer(socket)["cards"] if one["pci"] == pci), raw)
    if raw["switching"]:
        raise UsageError(f"{pci} has not come back yet: `nodeagent partition show` tells when it has")
    if raw["compute_partition"] != mode.upper():
        raise UsageError(f"{pci} is {raw['compute_partition']}: `gpulease events` says why")
    return safe(f"{pci}: {raw['compute_partition']}, {len(raw['devices'])} devices")


def put_all(socket: Path | None, wanted: Sequence[Choice]) -> tuple[list[str], bool]:
    """Put each card where it is wanted, as far as nobody uses it; a line each, and whether all are."""
    lines, done = [], True
    for choice in wanted:
        try:
            lines.append(put(socket, choice.card.pci, choice.mode))
        except (Refused, UsageError) as fault:
            lines.append(safe(f"{choice.card.pci}: not {choice.mode}: {fault}"))
            done = False
    return lines, done


def unmet(socket: Path | None, config_path: Path | None) -> list[Choice]:
    """The cards that are not as the settings want them.

    Raises:
        InvalidField: the settings want what a card cannot be.
    """
    found = [choice for choice in _choices(socket, config_path) if not choice.met]
    for choice in found:
        if choice.wrong:
            raise InvalidField("partitions.modes", choice.wrong)
    return found


def compared(socket: Path | None, config_path: Path | None) -> tuple[list[str], bool, bool]:
    """A line for each card that the settings name; whether one differs, and whether one could never be so."""
    found = _choices(socket, config_path)
    lines = [safe(f"{one.card.pci}: {_verdict(one)}") for one in found]
    return lines, not all(one.met for one in found), any(one.wrong for one in found)


def _verdict(choice: Choice) -> str:
    if choice.wrong:
        return f"WRONG: {choice.wrong}"
    if choice.met:
        return f"OK: {choice.mode}"
    switching = f", on the way to {choice.card.switching}" if choice.card.switching else ""
    return f"DIFFERS: is {choice.card.modes.compute}{switching}, wanted {choice.mode}"


def _choices(socket: Path | None, config_path: Path | None) -> list[Choice]:
    path = config_path or settings.DEFAULT_PATH
    config, complaints = settings.check(path)
    for complaint in complaints:
        if complaint.startswith("partitions"):
            raise InvalidField(str(path), complaint)
    return list(choices(config.partitions.modes, [_card(raw) for raw in answer(socket)["cards"]]))


def settings_lines(found: Mapping[str, Any]) -> str:
    """The cards' modes as settings."""
    modes = {raw["pci"]: raw["compute_partition"] for raw in found["cards"] if raw["compute_partition"]}
    lines = (f'"{safe(pci)}" = "{safe(mode.lower())}"' for pci, mode in modes.items())
    return "\n".join(["[partitions.modes]", *lines])


def _card(raw: Mapping[str, Any]) -> Card:
    modes = Modes(
        raw["compute_partition"],
        tuple(raw["compute_partitions"]),
        raw["memory_partition"],
        tuple(raw["memory_partitions"]),
        raw["memory_alloc_mode"],
    )
    return Card(raw["pci"], raw["product"], raw["gfx"], modes, switching=raw["switching"])
