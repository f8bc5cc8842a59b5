"""Answers for shells: ``KEY=VALUE`` and ``UNSET=NAME`` lines that are safe to read in any loop.

A shell sooner or later evaluates what it should only print, so a value with any character outside a small
set is left out, and the caller sees at most its own text (`Viewer.plain`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nodeagent.api.answers import Answer, LeaseAnswer

SAFE_VALUE = re.compile(r"[A-Za-z0-9,.:/_-]*", re.ASCII)
SAFE_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)
PREFIX = "GPULEASE"


def as_lines(answer: Answer) -> str:
    """A lease is its environment and a few facts of it; anything else its fields, flattened."""
    pairs = (
        _lease(answer) if isinstance(answer, LeaseAnswer) else _flat(PREFIX, answer.model_dump(mode="json"))
    )
    return "".join(f"{line}\n" for line in pairs)


def _lease(lease: LeaseAnswer) -> Iterator[str]:
    environment = dict(lease.environment or {})
    facts = {
        "GPULEASE_ID": str(lease.id),
        "GPULEASE_STATE": lease.state,
        "GPULEASE_CGROUP": lease.cgroup,
        "GPULEASE_EXPIRES_AT": lease.expires_at,
    }
    for name, value in facts.items():
        if name not in environment:
            yield from _line(name, value)
    for name, value in environment.items():
        if value is None and SAFE_NAME.fullmatch(name):
            yield f"UNSET={name}"
        else:
            yield from _line(name, value)


def _line(name: str, value: str | None) -> Iterator[str]:
    if value is not None and SAFE_NAME.fullmatch(name) and SAFE_VALUE.fullmatch(value):
        yield f"{name}={value}"


def _flat(name: str, value: Any) -> Iterator[str]:
    """Objects add their keys to the name, lists their indexes."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}_{str(key).upper()}", inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield f"{name}_COUNT={len(value)}"
        for index, inner in enumerate(value):
            yield from _flat(f"{name}_{index}", inner)
    elif isinstance(value, bool):
        yield from _line(name, str(value).lower())
    elif value is not None:
        yield from _line(name, str(value))
