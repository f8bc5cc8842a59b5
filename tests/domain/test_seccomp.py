"""The profile of supervised containers: which ioctls are asked about, and what else is refused."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nodeagent.domain.container import Engine
from nodeagent.domain.docker_ticket import canonical
from nodeagent.domain.seccomp import DRM, KFD, all_but, profile, why_not
from nodeagent.domain.seccomp_calls import BY_CAPABILITY, PLAIN, UNKNOWN

HOOK = Path(__file__).parents[2] / "nodeagent/hook"
LISTENER = "/run/nodeagent/containers/gpulease/7/seccomp"
# What docker documents as blocked, https://docs.docker.com/engine/security/seccomp/, without a capability.
BLOCKED = """
    add_key bpf create_module delete_module finit_module get_kernel_syms init_module io_uring_enter
    io_uring_register io_uring_setup ioperm iopl kexec_file_load kexec_load keyctl lookup_dcookie mount
    move_pages nfsservctl pivot_root query_module quotactl request_key setns swapoff swapon sysfs umount
    umount2 unshare uselib userfaultfd ustat vm86 vm86old
"""


def rules(call: str) -> Iterator[Mapping[str, Any]]:
    return (rule for rule in profile(LISTENER)["syscalls"] if call in rule["names"])


IOCTLS = [(rule["args"], rule["action"]) for rule in rules("ioctl")]
MASKS = [(mask["value"], mask["valueTwo"], action) for (mask,), action in IOCTLS]


def actions(command: int) -> set[str]:
    """What the profile does with an ioctl of that *command*; libseccomp takes any rule that matches."""
    return {action for mask, value, action in MASKS if command & mask == value}


def asked(low: int) -> bool:
    return low & 0xFF in KFD or low in DRM


def test_each_ioctl_is_asked_about_or_let_through() -> None:
    """Of all numbers each has one action, whatever its upper bits: two would be libseccomp's choice."""
    for low in range(1 << 16):
        wanted = {"SCMP_ACT_NOTIFY"} if asked(low) else {"SCMP_ACT_ALLOW"}
        assert actions(low) == wanted, hex(low)
    for low, high in itertools.product((0x4B16, 0x4B17, 0x6440), (0x4018, 0xC028, 0xFFFFFFFFC028)):
        assert actions(high << 16 | low) == actions(low)


def test_the_numbers_are_the_supervisors_own() -> None:
    """What its own filter is asked about for commands, containers are, too."""
    headers = "".join((HOOK / name).read_text() for name in ("kfd.h", "supervisor_ioctls.h"))
    source = (HOOK / "supervisor_filter.c").read_text()
    known = {name: int(value, 0) for name, value in re.findall(r"(\w+)(?: = |\s+)(0x[0-9a-f]+)\b", headers)}
    # Before the mask of one byte DRM's are compared, after it KFD's.
    kfd = {known[name] & 0xFF for name in re.findall(r"IF_EQUAL\((KFD_\w+)", source)}
    drm = {0x6400 | known[name] for name in re.findall(r"IF_EQUAL\(DRM\((DRM_\w+)\)", source)}
    assert (kfd, drm) == (set(KFD), set(DRM))


@pytest.mark.parametrize("left_out", [set(), {0}, {255}, {0x16, 0x17, 0x40}, set(range(256))], ids=len)
def test_prefixes_cover_all_but(left_out: set[int]) -> None:
    """Every byte is covered by one prefix, and those left out by none."""
    covers = list(all_but(left_out))
    for byte in range(256):
        assert sum(byte & mask == value for value, mask in covers) == (byte not in left_out)


def test_what_docker_blocks_is_blocked() -> None:
    """Nothing that is documented as blocked is let through; all else that is not named is refused, too."""
    allowed = {
        name
        for rule in profile(LISTENER)["syscalls"]
        if rule["action"] == "SCMP_ACT_ALLOW"
        for name in rule["names"]
    }
    assert allowed.isdisjoint(BLOCKED.split())
    assert profile(LISTENER)["defaultAction"] == "SCMP_ACT_ERRNO"
    assert PLAIN.isdisjoint(
        {"ioctl", "clone", "socket", "personality", *UNKNOWN, *itertools.chain(*BY_CAPABILITY.values())}
    )


def test_calls_of_a_capability_need_it() -> None:
    """They are let through where the container has it, as docker does, and no other way."""
    for capability, names in BY_CAPABILITY.items():
        for name in names:
            (rule,) = rules(name)
            assert rule["includes"] == {"caps": [capability]}


def test_arguments_that_are_looked_at() -> None:
    """New namespaces, the machine's host and odd personalities are no container's."""
    (clone,), (socket,) = rules("clone"), rules("socket")
    flags = clone["args"][0]
    assert (flags["value"] & 0x10000000, flags["valueTwo"], flags["op"]) == (
        0x10000000,
        0,
        "SCMP_CMP_MASKED_EQ",
    )
    assert socket["args"] == [{"index": 0, "value": 40, "op": "SCMP_CMP_NE"}]
    assert {rule["args"][0]["value"] for rule in rules("personality")} == {0, 8, 0x20000, 0x20008, 0xFFFFFFFF}


def test_it_names_its_lease_alone() -> None:
    """Two leases' profiles differ in where their listeners go, and that is all."""
    one, other = profile(LISTENER), profile("/run/nodeagent/containers/gpulease/8/seccomp")
    assert canonical(one) != canonical(other)
    assert {**one, "listenerPath": ""} == {**other, "listenerPath": ""}


@pytest.mark.parametrize(
    ("engine", "version", "why"),
    [
        (Engine.DOCKER, "26.1.5+dfsg1", None),
        (Engine.DOCKER, "23.0.0", None),
        (Engine.DOCKER, "20.10.24+dfsg1", "23.0 or newer"),
        (Engine.DOCKER, "x", "23.0 or newer"),
        (Engine.DOCKER, "", "23.0 or newer"),
        (Engine.DOCKER, "٢٦.1", "23.0 or newer"),
        (Engine.DOCKER, None, "does not answer"),
        (Engine.PODMAN, "4.3.1", None),
        (Engine.PODMAN, "5", None),
        (Engine.PODMAN, "4.0.3", "4.1 or newer"),
        (Engine.NERDCTL, "9.9", "cannot be asked"),
    ],
)
def test_engines_that_can(engine: Engine, version: str | None, why: str | None) -> None:
    """Only those that hand listeners on; what does not say what it is counts as one that does not."""
    said = why_not(engine, version)
    assert said is None if why is None else why in (said or "")
