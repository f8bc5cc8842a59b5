"""A lease as a CDI specification, and the memory banks that its containers see."""

from __future__ import annotations

from nodeagent.domain.cdi import edits, specification
from nodeagent.domain.memory_banks import shrunken

NAME = "0123456789abcdef" * 2
KFD = {"host": "/dev/kfd", "inside": "/dev/kfd"}
DEVICES = (KFD, {"host": "/srv/dri/renderD129", "inside": "/dev/dri/renderD129"})
MOUNTS = (
    {"source": "/run/a", "target": "/etc/ld.so.preload", "read_only": True},
    {"source": "/run/b", "target": "/run/usage", "read_only": False},
)
ENVIRONMENT = {
    "ROCR_VISIBLE_DEVICES": "GPU-1,GPU-2",
    "HSA_CU_MASK": None,
    "HIP_VISIBLE_DEVICES": None,
    "CUDA_VISIBLE_DEVICES": None,
    "GPU_DEVICE_ORDINAL": None,
    "ROC_GLOBAL_CU_MASK": None,
    "HSA_CU_MASK_SKIP_INIT": None,
}
GIVEN = edits(DEVICES, MOUNTS, ENVIRONMENT)


def test_a_specification_has_only_what_its_version_knows() -> None:
    """Loaders refuse other fields, and empty lists say nothing."""
    whole = specification(NAME, GIVEN)
    assert (whole["cdiVersion"], whole["kind"]) == ("0.5.0", "nodeagent.local/lease")
    assert set(whole) == {"cdiVersion", "kind", "devices"}
    assert whole["devices"] == [{"name": NAME, "containerEdits": GIVEN}]
    assert set(GIVEN) == {"deviceNodes", "env", "mounts"}
    assert edits([KFD], (), {}).keys() == {"deviceNodes"}


def test_only_the_leases_own_nodes_are_given_under_their_usual_names() -> None:
    """Wherever they lie on the node; to read and write, and not to make others."""
    assert GIVEN["deviceNodes"] == [
        {"path": "/dev/kfd", "hostPath": "/dev/kfd", "permissions": "rw"},
        {"path": "/dev/dri/renderD129", "hostPath": "/srv/dri/renderD129", "permissions": "rw"},
    ]


def test_what_must_not_be_set_is_set_to_what_says_nothing() -> None:
    """CDI cannot unset what an image sets: devices are chosen once, and no mask but the lease's is left."""
    assert GIVEN["env"] == [
        "ROCR_VISIBLE_DEVICES=GPU-1,GPU-2",
        "HSA_CU_MASK=",
        "HIP_VISIBLE_DEVICES=0,1",
        "CUDA_VISIBLE_DEVICES=0,1",
        "GPU_DEVICE_ORDINAL=0,1",
        "ROC_GLOBAL_CU_MASK=",
        "HSA_CU_MASK_SKIP_INIT=0",
    ]


def test_mounts_bring_no_devices_and_no_rights() -> None:
    """Read-only where nothing is to be written."""
    ro, rw = GIVEN["mounts"]
    assert ro == {
        "hostPath": "/run/a",
        "containerPath": "/etc/ld.so.preload",
        "options": ["ro", "bind", "nosuid", "nodev"],
    }
    assert rw["options"][0] == "rw"


def test_banks_of_video_memory_are_cut_to_the_slice_in_all() -> None:
    """The first ones get it; system memory, and what else a bank says, stay."""
    system, private = (
        {"heap_type": 0, "size_in_bytes": 100, "width": 64},
        {"heap_type": 2, "size_in_bytes": 50},
    )
    banks = {0: {"heap_type": 1, "size_in_bytes": 30, "flags": 3}, 1: system, 2: private}
    kept = shrunken(banks, 40)
    assert kept == {
        0: {"heap_type": 1, "size_in_bytes": 30, "flags": 3},
        1: system,
        2: {**private, "size_in_bytes": 10},
    }
    assert shrunken(banks, 1000) == banks
