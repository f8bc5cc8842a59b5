"""What a lease's ticket gives a container: its own devices, mounts and cgroup, all its fence, no more."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from nodeagent.domain.docker_grounds import Grounds
from nodeagent.domain.docker_ticket import Mount, Ticket, canonical, ticket_from
from nodeagent.domain.errors import InvalidField
from nodeagent.domain.seccomp import profile

from .docker_bodies import TICKET, TREES, WITH_TICKET, create, leased_host

KFD = {"PathOnHost": "/dev/kfd", "PathInContainer": "/dev/kfd", "CgroupPermissions": "rwm"}


def bind(source: str) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": "/d"}


def test_a_lease_gives_what_is_its_own() -> None:
    """With the ticket its devices, mounts, groups and cgroup pass."""
    labels = {"gpulease.lease": "7", "gpulease.ticket": "x"}
    assert create(leased_host(), WITH_TICKET, Labels=labels) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"Devices": [{**KFD, "PathOnHost": "/dev/dri/renderD129"}]},
        {"Devices": [{**KFD, "PathOnHost": "/dev/dri"}]},
        {"CgroupParent": "gpulease-8.slice"},
        {"CgroupParent": ""},
        {"CgroupParent": None},
        {"Mounts": []},
        {"Mounts": leased_host()["Mounts"][:1]},
        {"Mounts": [{**mount, "ReadOnly": False} for mount in leased_host()["Mounts"]]},
        {"Mounts": [{**mount, "Target": "/x"} for mount in leased_host()["Mounts"]]},
        {"Mounts": [*leased_host()["Mounts"], bind("/run/nodeagent/containers/gpulease/8/limits")]},
        {"Mounts": [{**mount, "target": "/x"} for mount in leased_host()["Mounts"]]},
        {"Privileged": True},
        {"PidMode": "host"},
        {"SecurityOpt": ['seccomp={"listenerPath":"/run/docker.sock"}']},
        {"CapAdd": ["SYS_ADMIN"]},
        {"DeviceCgroupRules": ["c 226:* rwm"]},
        {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["amd.com/gpu=0"]}]},
    ],
    ids=lambda changed: json.dumps(changed)[:60],
)
def test_a_lease_gives_no_more_than_its_own(changed: dict[str, Any]) -> None:
    """Nothing of its fence is left out, and nothing of another lease is taken."""
    assert create(leased_host(**changed), WITH_TICKET)


PROFILE = profile("/run/nodeagent/containers/gpulease/7/seccomp")
SUPERVISED = Grounds(TREES, ticket=replace(TICKET, seccomp=canonical(PROFILE)))


def option(document: object) -> str:
    return f"seccomp={json.dumps(document, indent=1)}"


def test_a_supervised_lease_has_its_profile() -> None:
    """Its own passes, however it is written, and other security options beside it."""
    upside_down = dict(reversed(PROFILE.items()))
    for given in ([option(PROFILE)], ["no-new-privileges", option(upside_down)]):
        assert create(leased_host(SecurityOpt=given), SUPERVISED) is None


@pytest.mark.parametrize(
    "given",
    [
        None,
        [],
        ["no-new-privileges"],
        ["seccomp=unconfined"],
        ["seccomp=builtin"],
        ["seccomp={}"],
        ["seccomp=profile.json"],
        [option(PROFILE), "seccomp=unconfined"],
        ["seccomp=unconfined", option(PROFILE)],
        [option({**PROFILE, "listenerPath": "/run/docker.sock"})],
        [option({**PROFILE, "listenerPath": PROFILE["listenerPath"].replace("7", "8")})],
        [option({**PROFILE, "defaultAction": "SCMP_ACT_ALLOW"})],
        [option({**PROFILE, "syscalls": PROFILE["syscalls"][1:]})],
        [option({**PROFILE, "defaultErrnoRet": True})],
        [option({**PROFILE, "defaultErrnoRet": 1.0})],
        [option(PROFILE).replace('"listenerPath"', '"ListenerPath": "/run/x", "listenerPath"')],
        [option(PROFILE).replace('"listenerPath"', '"listenerPath": "/run/x", "listenerPath"')],
    ],
    ids=lambda given: json.dumps(given)[:40],
)
def test_a_supervised_lease_has_no_other_profile(given: object) -> None:
    """Without it, or with one that differs in anything, nothing would be held as the lease states."""
    assert create(leased_host(SecurityOpt=given), SUPERVISED)


def test_a_ticket_is_read_with_its_profile() -> None:
    """What is no profile there is no ticket of the agent's; one of an older agent has none."""
    record = {"lease": 7, "cgroup_parents": [], "devices": [], "mounts": []}
    assert ticket_from(record).seccomp is None
    assert ticket_from({**record, "seccomp": PROFILE}).seccomp == canonical(PROFILE)
    with pytest.raises(InvalidField):
        ticket_from({**record, "seccomp": "unconfined"})


def test_a_ticket_speaks_for_its_own_lease() -> None:
    """The label of another lease beside it is a lie."""
    assert create(leased_host(), WITH_TICKET, Labels={"gpulease.lease": "8"})


def test_a_cdi_ticket_brings_its_mounts_along() -> None:
    """A lease's CDI device is asked for by name; its file has the mounts."""
    grounds = Grounds(TREES, ticket=WITH_TICKET.ticket, by_cdi=True)
    asked = {"Driver": "cdi", "Count": 0, "DeviceIDs": [f"nodeagent.local/lease={'a' * 32}"]}
    host = {"DeviceRequests": [asked], "CgroupParent": "gpulease-7.slice"}
    assert create(host, grounds) is None
    assert create(
        {**host, "DeviceRequests": [{**asked, "DeviceIDs": [*asked["DeviceIDs"], "amd.com/gpu=0"]}]}, grounds
    )
    assert create({**host, "DeviceRequests": [{**asked, "Options": {"a": "b"}}]}, grounds)
    assert create({"DeviceRequests": [asked]}, grounds)
    by_compose = {**asked, "Count": -1, "Capabilities": [["gpu"]]}
    assert create({**host, "DeviceRequests": [by_compose]}, grounds) is None


def test_a_lease_without_a_cgroup_of_its_own_stays_outside_others() -> None:
    """Where the node has no cgroup2 for containers, the engine's own parent is used."""
    mount = Mount("/run/nodeagent/containers/gpulease/7/lease", "/etc/gpulease/lease", read_only=True)
    grounds = Grounds(TREES, ticket=Ticket(7, mounts=frozenset([mount])))
    mounts = [{"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": True}]
    assert create({"Mounts": mounts}, grounds) is None
    assert create({"Mounts": mounts, "CgroupParent": "/gpulease.slice/gpulease-7.slice"}, grounds)
