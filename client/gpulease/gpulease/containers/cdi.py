"""A lease as a CDI device, in words for a command line or a compose file of the user's own."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpulease.containers.placement import Placement
from gpulease.errors import AnswerError
from gpulease.models import Lease, Raw, mapping, text

START_SECONDS = 900  # in which the container must begin: its user has yet to type, and an image to be pulled
_WORD = re.compile(r"[A-Za-z0-9_./:=@+-]+", re.ASCII)  # means itself, unquoted, to shells and to compose


def anchor(form: str) -> dict[str, object]:
    """For a lease that lives as long as the container that is given it."""
    engine = "podman" if form == "podman" else "docker"
    return {"kind": "container", "engine": engine, "start_seconds": START_SECONDS}


def lines(lease: Lease, form: str) -> Iterator[str]:
    """What ``grant --cdi`` prints: variables for docs/compose.yaml, or options of the engine *form*.

    The options are one line, which a shell splits into words.

    Raises:
        AnswerError: the lease is no device, or its words are not one each to a shell.
    """
    raw = mapping(lease.raw, "container")
    device, placement = text(raw, "cdi"), Placement.from_raw(raw)
    if device is None:
        raise AnswerError({"detail": f"the agent did not make lease {lease.id} a CDI device"})
    if form == "env":
        yield f"GPULEASE_ID={lease.id}"
        yield f"GPULEASE_TICKET={_plain(device.partition('=')[2])}"
        yield f"GPULEASE_CGROUP_PARENT={_plain(placement.cgroup_parent) if placement.cgroup_parent else ''}"
    else:
        yield " ".join(map(_plain, _options(raw, device, placement, form)))


def _options(raw: Raw, device: str, placement: Placement, engine: str) -> Iterator[str]:
    yield from ("--device", device)  # its nodes are everybody's inside, so no group is needed
    asked = text(raw, "engine") or "docker"  # which the parent is for
    if placement.cgroup_parent and asked == engine:
        yield from ("--cgroup-parent", placement.cgroup_parent)
    for label, value in placement.labels.items():
        yield from ("--label", f"{label}={value}")


def _plain(word: str) -> str:
    if not _WORD.fullmatch(word):
        raise AnswerError({"detail": f"the agent serves {word!r}, which is not one word to a shell"})
    return word
