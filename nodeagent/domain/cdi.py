"""A lease as a device of the Container Device Interface, for whoever keeps a command line of their own.

The specification is SPEC.md of cncf-tags/container-device-interface. Its loaders refuse fields that they do
not know, and a ``cdiVersion`` that is too low for what is used: so no more is used than an old one has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from nodeagent.domain.offer import BindMount, Offer

KIND = "nodeagent.local/lease"
# For names that begin with a digit, and devices whose path is another one inside; podman 4.3 and docker 25
# read it. ``additionalGids`` came with 0.7.0, and docker does not heed them.
VERSION = "0.5.0"
NAME = re.compile(r"[0-9a-f]{32}", re.ASCII)  # 128 random bits: who knows it may use the lease

# CDI sets variables and cannot unset what an image sets. So what must not be set gets a value that says
# nothing: to choose devices, all that ROCR_VISIBLE_DEVICES leaves; else what ROCm does without it.
_CHOOSING = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_WITHOUT = {"HSA_CU_MASK_SKIP_INIT": "0"}
_ON_THE_NODE = frozenset(("LD_PRELOAD", "GPULEASE_HOOK"))  # paths that are none inside: mounts stand for them


def qualified(name: str) -> str:
    """What ``--device`` takes."""
    return f"{KIND}={name}"


def specification(name: str, offer: Offer) -> dict[str, Any]:
    """The content of a CDI file with the one device *name*, which gives a container what *offer* says."""
    edits = {
        "deviceNodes": [
            {"path": one.inside, "hostPath": one.host, "permissions": "rw"} for one in offer.devices
        ],
        "env": list(_variables(offer.environment)),
        "mounts": [_mount(one) for one in offer.mounts],
    }
    said = {field: values for field, values in edits.items() if values}
    return {"cdiVersion": VERSION, "kind": KIND, "devices": [{"name": name, "containerEdits": said}]}


def _variables(environment: Mapping[str, str | None]) -> Iterator[str]:
    visible = [one for one in (environment.get("ROCR_VISIBLE_DEVICES") or "").split(",") if one]
    all_of_them = ",".join(str(index) for index in range(len(visible)))
    says_nothing = dict.fromkeys(_CHOOSING, all_of_them) | _WITHOUT
    for name, value in environment.items():
        if name not in _ON_THE_NODE:
            yield f"{name}={says_nothing.get(name, '') if value is None else value}"


def _mount(mount: BindMount) -> dict[str, Any]:
    access = "ro" if mount.read_only else "rw"
    options = [access, "bind", "nosuid", "nodev"]
    return {"hostPath": mount.source, "containerPath": mount.target, "options": options}
