"""How the agent is, in one line: for people, for Slurm's health checks, and as a Nagios plugin says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any


class State(IntEnum):
    """The exit code. What an administrator chose is well: a bypass, a mode, a drain."""

    WELL = 0
    NOT_GRANTING = 1
    SILENT = 2


@dataclass(frozen=True, slots=True)
class Health:
    """*warnings*: what a person should look at some day, though the agent is well."""

    state: State
    text: str
    warnings: tuple[str, ...] = ()
    figures: Mapping[str, int] = field(default_factory=dict)

    @property
    def line(self) -> str:
        said = "; ".join((self.text, *self.warnings))
        return f"agent: {said}"

    def document(self) -> dict[str, Any]:
        """The same for programs; the state in lower case."""
        return {
            "state": self.state.name.lower(),
            "text": self.text,
            "warnings": list(self.warnings),
            "figures": dict(self.figures),
        }

    def nagios(self) -> tuple[str, int]:
        """A plugin's line with its performance data, and its exit code: OK, WARNING or CRITICAL."""
        code = 2 if self.state is not State.WELL else 1 if self.warnings else 0
        text = self.line.removeprefix("agent: ").replace("|", "/")
        data = " ".join(f"{name}={value}" for name, value in self.figures.items())
        said = f"NODEAGENT {('OK', 'WARNING', 'CRITICAL')[code]} - {text}"
        return (f"{said} | {data}" if data else said), code


def silent(why: str, bypass: str | None) -> Health:
    """Of an agent that does not answer; *bypass*: the reason of one that is on, so that nobody needs it."""
    if bypass is not None:
        return Health(
            State.WELL, f"does not answer ({why})", (f"bypassed: {bypass}",), {"ready": 0, "bypass": 1}
        )
    return Health(State.SILENT, f"not answering: {why}", (), {"ready": 0, "bypass": 0})


def of_node(node: Mapping[str, Any], devices: Sequence[Mapping[str, Any]] | None = None) -> Health:
    """What the agent's own documents come to; *devices* may be left out."""
    bypass, drains = node.get("bypass"), node.get("drains") or ()
    figures = {"ready": int(bool(node["ready"])), "bypass": int(bypass is not None)}
    warnings = [f"bypassed: {bypass['reason']}"] if bypass else []
    if trouble := node.get("bypass_trouble"):
        warnings.append(f"a bypass that is not believed: {trouble}")
    if devices is not None:
        states = [str(one["state"]) for one in devices]
        sick = sum(state not in ("healthy", "draining") for state in states)
        ailing = sum(one["state"] == "healthy" and bool(one.get("reason")) for one in devices)
        figures |= {"devices": len(states), "sick": sick, "draining": states.count("draining")}
        warnings += [f"{sick} of {len(states)} devices sick"] if sick else []
        warnings += [f"{ailing} of {len(states)} devices ailing, and granted from"] if ailing else []
    if not node["ready"]:
        return Health(State.NOT_GRANTING, f"no new leases: {node['reason']}", tuple(warnings), figures)
    text = f"well ({node['machine']}, version {node['version']})"
    if any(drain["device"] is None for drain in drains):
        text += ", node draining"
    elif drains:
        text += f", {len(drains)} devices draining"
    observed = [kind for kind, mode in (node.get("modes") or {}).items() if mode == "observe"]
    text += f", observing {', '.join(observed)}" if observed else ""
    return Health(State.WELL, text, tuple(warnings), figures)
