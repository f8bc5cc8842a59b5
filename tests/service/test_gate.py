"""The gate over nodes that mknod made, opened by processes of other users."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from service_builders import GIB, House, until, user

from nodeagent.adapters.acl import Acl, DeviceNode
from nodeagent.adapters.gate_record import RECORD
from nodeagent.config import Devices
from nodeagent.domain.guarantee import Visibility
from nodeagent.domain.lease import Lease, LeaseState

ANN, BEN = 61_001, 61_002
MINOR = os.getpid() & 0xFFFFF  # of this run alone: who has it open is looked for on the whole machine


class Gated:
    """An agent with a gate, over nodes that nobody's driver serves: opening one fails, but not for rights."""

    def __init__(self, build: Callable[..., House], state: Path) -> None:
        self._build, self.state = build, state
        self.house = build()
        dri = self.house.root / "dev/dri"
        dri.mkdir(parents=True)
        os.mknod(self.kfd, 0o20666, os.makedev(511, MINOR))
        for device in self.house.survey.found().devices:
            minor = int(device.render_node.removeprefix("renderD"))
            os.mknod(dri / device.render_node, 0o20666, os.makedev(226, minor))
        for node in self.nodes():
            node.chmod(0o666)
        (self.house.root / "sys/class/kfd/kfd/dev").write_text(f"511:{MINOR}\n")

    @property
    def kfd(self) -> Path:
        return self.house.root / "dev/kfd"

    def begin(self, gate: str = "acl", **settings: Any) -> None:
        """Another agent over the same state, as after a restart; it has had its first look."""
        self.house.die()
        self.house = self._build(config={"devices": Devices(gate=gate, **settings)})

    def nodes(self) -> list[Path]:
        return [self.kfd, *sorted((self.house.root / "dev/dri").iterdir())]

    def open_to(self, uid: int) -> list[str]:
        """The nodes whose rights let *uid* in, as the kernel says to a process of that uid."""
        lets_in = []
        for node in self.nodes():
            script = f"exec 3<>{node.name}"
            said = subprocess.run(
                ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "sh", "-c", script],
                cwd=node.parent,
                capture_output=True,
                check=False,
            )
            if b"ermission denied" not in said.stderr:
                lets_in.append(node.name)
        return lets_in


@pytest.fixture
def before(build: Callable[..., House], tmp_path: Path) -> Gated:
    """The node before its agent has the gate."""
    if os.geteuid() != 0:
        pytest.skip("device nodes and other users need root")
    for part in (tmp_path, *tmp_path.parents[:3]):
        part.chmod(part.stat().st_mode | 0o711)
    return Gated(build, tmp_path / "state")


@pytest.fixture
def gated(before: Gated) -> Gated:
    before.begin()
    return before


def grant(gated: Gated, uid: int, **wanted: Any) -> Lease:
    return gated.house.grant(user(uid), cus=8, vram_bytes=GIB, **wanted)


def device_node(lease: Lease, gated: Gated) -> str:
    return gated.house.agent.device(lease.slices[0].placed.device).render_node


@pytest.mark.way_out(
    "opening a device that one has no lease on", tier="acl", outcome="refused by the file's ACL"
)
def test_a_lease_opens_its_own_nodes_to_its_holder(before: Gated) -> None:
    """/dev/kfd and the lease's render node, for its uid and as long as it lives; to others all is closed."""
    gated = before
    assert len(gated.open_to(ANN)) == 3
    gated.begin()
    lease = grant(gated, ANN)
    assert gated.open_to(ANN) == ["kfd", device_node(lease, gated)]
    assert gated.open_to(BEN) == []
    assert lease.guarantee.visibility is Visibility.ACL
    gated.house.release(lease)
    assert gated.open_to(ANN) == []


def test_a_second_lease_of_the_uid_keeps_the_node_open(gated: Gated) -> None:
    """The entry goes with the last live lease of the uid there."""
    first, second = grant(gated, ANN), grant(gated, ANN)
    shared = {device_node(first, gated), device_node(second, gated), "kfd"}
    assert set(gated.open_to(ANN)) == shared
    gated.house.release(first)
    assert set(gated.open_to(ANN)) == {device_node(second, gated), "kfd"}
    gated.house.release(second)
    assert gated.open_to(ANN) == []


@pytest.mark.way_out(
    "udev resets the node's mode", tier="acl", outcome="closed again at the next look; until then it is open"
)
def test_what_udev_resets_is_closed_again(gated: Gated) -> None:
    """The next look writes the ACL anew, after a crash of the agent too."""
    lease = grant(gated, ANN)
    for node in gated.nodes():
        node.chmod(0o666)
    assert len(gated.open_to(BEN)) == 3
    gated.begin()
    assert gated.open_to(BEN) == []
    assert gated.open_to(ANN) == ["kfd", device_node(lease, gated)]


def test_turned_off_it_puts_back_what_was_there(gated: Gated) -> None:
    """Modes and ACLs as before the gate first closed, and nothing is left on record."""
    grant(gated, ANN)
    gated.begin(gate="off")
    assert {node.stat().st_mode & 0o777 for node in gated.nodes()} == {0o666}
    assert len(gated.open_to(BEN)) == 3
    assert not (gated.state / RECORD).exists()


def test_exempt_services_keep_every_node(gated: Gated) -> None:
    """Uids that the site names are let in everywhere."""
    gated.begin(gate_exempt_uids=[BEN])
    assert len(gated.open_to(BEN)) == 3
    assert gated.open_to(ANN) == []


def test_a_seats_user_keeps_its_display(gated: Gated) -> None:
    """On a card that drives a display the entries that logind wrote stay; the gate's own still go."""
    lease = grant(gated, ANN)
    device = gated.house.agent.device(lease.slices[0].placed.device)
    connector = gated.house.root / f"sys/bus/pci/devices/{device.pci}/drm/card0/card0-DP-1"
    connector.mkdir(parents=True)
    for name, state in (("status", "connected"), ("enabled", "enabled")):
        (connector / name).write_text(state)
    minor = int(device.render_node.removeprefix("renderD"))
    node = DeviceNode(gated.house.root / "dev/dri" / device.render_node, 226, minor)
    acl = node.read()
    node.write(Acl(acl.owner, 0, 0, 6, {**acl.users, BEN: 6}))
    gated.house.release(lease)
    gated.house.look()
    assert node.read().users == {BEN: 6}


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.way_out(
    "a node that was opened before",
    tier="acl",
    outcome="goes on working; told, or its process is killed where the site says so",
)
def test_who_had_a_node_open_is_told_and_ended_if_the_site_says_so(before: Gated, kill: bool) -> None:
    """Threat 21: a descriptor from before the gate closed works on, so its process is named, or killed."""
    gated = before
    path = os.open(gated.kfd, os.O_PATH)  # no driver serves it, so a real open is not to be had
    child = subprocess.Popen(["sleep", "600"], user=ANN, group=ANN, extra_groups=[], pass_fds=[path])
    os.close(path)
    try:
        gated.begin(gate_on_leftover="kill" if kill else "report")
        told = leftovers(gated)
        assert [(event.data["pid"], event.data["uid"]) for event in told] == [(child.pid, ANN)]
        if kill:
            until(lambda: child.poll() is not None)
        else:
            assert child.poll() is None
        gated.house.look()
        assert leftovers(gated) == told
    finally:
        child.kill()
        child.wait()


@pytest.mark.way_out(
    "sending a node's descriptor to another user's program, or a service, to have it killed",
    tier="acl",
    outcome="only programs of users that the node was open to are named, and services are never killed",
)
def test_who_was_sent_a_descriptor_is_not_ended_for_it(gated: Gated) -> None:
    """A lease's end names and kills its holder's programs; when all could open the node, no service's."""
    service = 105
    gated.begin(gate_on_leftover="kill")
    lease = gated.house.grant(user(ANN), cus=8)
    node = os.open(gated.kfd, os.O_PATH)
    children = {
        uid: subprocess.Popen(["sleep", "600"], user=uid, group=uid, extra_groups=[], pass_fds=[node])
        for uid in (ANN, BEN, service)
    }
    os.close(node)
    try:
        gated.house.release(lease)
        until(lambda: children[ANN].poll() is not None)
        assert [event.data["uid"] for event in leftovers(gated)] == [ANN]
        gated.kfd.chmod(0o666)  # as udev does
        gated.house.look()
        until(lambda: children[BEN].poll() is not None)
        assert {event.data["uid"]: event.data["killed"] for event in leftovers(gated)} == {
            ANN: True,
            BEN: True,
            service: False,
        }
        assert children[service].poll() is None
    finally:
        for child in children.values():
            child.kill()
            child.wait()


def test_a_process_that_cannot_be_looked_at_holds_up_nobody(
    before: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at processes that does not come back is given up, and the node is closed all the same."""
    never = threading.Event()
    monkeypatch.setattr("nodeagent.service.gate.LOOK_SECONDS", 0.1)
    monkeypatch.setattr("nodeagent.service.gate.users_of", lambda node: never.wait() and ())
    try:
        before.begin()
        assert before.open_to(ANN) == []
    finally:
        never.set()


def leftovers(gated: Gated) -> list[Any]:
    return [event for event in gated.house.ledger.events() if event.kind == "gate_leftover"]


def test_root_is_not_held_by_it(gated: Gated) -> None:
    """Nothing is stated of a lease of root's, which opens whatever it likes."""
    lease = gated.house.grant(cus=8)
    assert lease.guarantee.visibility is Visibility.ENVIRONMENT
    assert gated.house.state(lease.id) is LeaseState.ACTIVE
