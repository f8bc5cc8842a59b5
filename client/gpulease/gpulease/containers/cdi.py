"""A lease as a CDI device, in words for a command line or a compose file of the user's own."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpulease.containers.placement import Placement
from gpulease.errors import AnswerError
from gpulease.models import Lease, mapping, text

_WORD = re.compile(r"[A-Za-z0-9_./:=@+-]+", re.ASCII)  # means itself, unquoted, to shells and to compose


def device(lease: Lease) -> str:
    """The device's qualified name. Raises AnswerError where the agent gives none."""
    name = text(mapping(lease.raw, "container"), "cdi")
    if name is None:
        raise AnswerError({"detail": f"the agent did not make lease {lease.id} a CDI device"})
    return _plain(name)


def run_words(lease: Lease) -> str:
    """Options of docker's and podman's ``run`` and ``create``, in one line that a shell splits into them."""
    return " ".join(map(_plain, _options(device(lease), _placement(lease))))


def env_lines(lease: Lease) -> Iterator[str]:
    """Variables for docs/compose.yaml, as compose reads them from ``.env``; no parent: the engine's own."""
    parent = _placement(lease).cgroup_parent
    yield f"GPULEASE_ID={lease.id}"
    yield f"GPULEASE_CDI={device(lease)}"
    yield f"GPULEASE_CGROUP_PARENT={_plain(parent) if parent else ''}"


def _options(name: str, placement: Placement) -> Iterator[str]:
    yield from ("--device", name)  # its nodes are everybody's inside, so no group is needed
    if placement.cgroup_parent:
        yield from ("--cgroup-parent", placement.cgroup_parent)
    for label, value in placement.labels.items():
        yield from ("--label", f"{label}={value}")


def _placement(lease: Lease) -> Placement:
    return Placement.from_raw(mapping(lease.raw, "container"))


def _plain(word: str) -> str:
    if not _WORD.fullmatch(word):
        raise AnswerError({"detail": f"the agent serves {word!r}, which is not one word to a shell"})
    return word
