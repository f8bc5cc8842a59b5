"""A lease as a device of the Container Device Interface, for whoever keeps a command line of their own.

The specification is SPEC.md of cncf-tags/container-device-interface. Its loaders refuse fields that they do
not know, and a ``cdiVersion`` that is too low for what is used: so no more is used than an old one has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

KIND = "nodeagent.local/lease"
# For names that begin with a digit, and devices whose path is another one inside; podman 4.3 and docker 25
# read it. ``additionalGids`` came with 0.7.0, and docker does not heed them.
VERSION = "0.5.0"

# CDI sets variables and cannot unset what an image sets. So what must not be set gets a value that says
# nothing: to choose devices, all that ROCR_VISIBLE_DEVICES leaves; else what ROCm does without it.
_CHOOSING = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_WITHOUT = {"HSA_CU_MASK_SKIP_INIT": "0"}


def qualified(name: str) -> str:
    """What ``--device`` takes."""
    return f"{KIND}={name}"


def edits(
    devices: Sequence[Mapping[str, str]],
    mounts: Sequence[Mapping[str, Any]],
    environment: Mapping[str, str | None],
) -> dict[str, Any]:
    """What a container is given, as CDI's ``containerEdits`` have it.

    *devices*: ``host`` and ``inside`` path of each node; *mounts*: ``source``, ``target`` and ``read_only``;
    *environment*: None where a variable must not be set.
    """
    said = {
        "deviceNodes": [
            {"path": one["inside"], "hostPath": one["host"], "permissions": "rw"} for one in devices
        ],
        "env": list(_variables(environment)),
        "mounts": [_mount(one) for one in mounts],
    }
    return {field: values for field, values in said.items() if values}


def specification(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a CDI file with the one device *name*, whose `edits` are *given*."""
    return {"cdiVersion": VERSION, "kind": KIND, "devices": [{"name": name, "containerEdits": given}]}


def _variables(environment: Mapping[str, str | None]) -> Iterator[str]:
    visible = [one for one in (environment.get("ROCR_VISIBLE_DEVICES") or "").split(",") if one]
    all_of_them = ",".join(str(index) for index in range(len(visible)))
    says_nothing = dict.fromkeys(_CHOOSING, all_of_them) | _WITHOUT
    for name, value in environment.items():
        yield f"{name}={says_nothing.get(name, '') if value is None else value}"


def _mount(mount: Mapping[str, Any]) -> dict[str, Any]:
    options = ["ro" if mount["read_only"] else "rw", "bind", "nosuid", "nodev"]
    return {"hostPath": mount["source"], "containerPath": mount["target"], "options": options}
