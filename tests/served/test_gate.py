"""The gate on a node: the real agent, real device files, the kernel's own answer to other users."""

from __future__ import annotations

import pytest

from .conftest import LET_IN, RENDERS, ServedNode

pytestmark = pytest.mark.root

ANN, BEN = 64_321, 64_322
SMALL = ("--cu", "8", "--vram", "1G")
SHUT = dict.fromkeys(LET_IN, "EACCES")


def render_of(node: ServedNode, lease: dict) -> str:
    return node.http("GET", f"/v1/devices/{lease['slices'][0]['device']}")["render_node"]


def let_in(*renders: str) -> dict[str, str]:
    """What opening gives to a uid with leases on the devices of these render nodes."""
    return SHUT | {name: LET_IN[name] for name in ("kfd", *renders)}


def other(render: str) -> str:
    return next(name for name in RENDERS if name != render)


def test_a_user_opens_the_nodes_of_its_leases_and_no_other(node: ServedNode) -> None:
    """Without a lease EACCES; with one exactly its own nodes, for its uid alone; after it EACCES again."""
    assert node.open_to(ANN) == LET_IN
    node.start("acl")
    assert (node.open_to(ANN), node.open_to(BEN)) == (SHUT, SHUT)
    lease = node.grant(ANN, *SMALL)
    assert lease["guarantee"]["visibility"] == "acl"
    assert node.open_to(ANN) == let_in(render_of(node, lease))
    assert node.open_to(BEN) == SHUT
    node.release(ANN, lease)
    assert node.open_to(ANN) == SHUT


def test_a_run_opens_its_own_nodes_while_it_runs(node: ServedNode) -> None:
    """The command of `gpulease run` finds its device open, and the other one shut."""
    node.start("acl")
    device = node.http("GET", "/v1/devices")["devices"][1]
    opened = node.opened_in_a_run(ANN, *SMALL, "--device", device["device"])
    assert opened == let_in(device["render_node"])
    node.until(lambda: node.open_to(ANN) == SHUT)


def test_what_a_crash_and_udev_left_is_put_right(node: ServedNode) -> None:
    """After kill -9 the holder's nodes stay open; a start closes what was opened meanwhile, and no more."""
    node.start("acl")
    lease = node.grant(ANN, *SMALL)
    mine = let_in(render_of(node, lease))
    node.kill()
    assert (node.open_to(ANN), node.open_to(BEN)) == (mine, SHUT)
    for path in node.nodes():
        path.chmod(0o666)
    assert node.open_to(BEN) == LET_IN
    node.start("acl")
    assert (node.open_to(ANN), node.open_to(BEN)) == (mine, SHUT)
    node.release(ANN, lease)
    assert node.open_to(ANN) == SHUT


def test_a_lease_that_ended_while_the_agent_was_dead_opens_nothing(node: ServedNode) -> None:
    """Its time was up before the agent came back: its entries go at the first look."""
    node.start("acl")
    node.grant(ANN, *SMALL, "--ttl", "1s")
    node.kill()
    node.start("acl")
    node.until(lambda: node.open_to(ANN) == SHUT)


def test_what_udev_resets_is_closed_at_the_next_look(node: ServedNode) -> None:
    """A chmod to 0666, as a udev rule does it, lasts until the agent looks."""
    node.start("acl")
    lease = node.grant(ANN, *SMALL)
    for path in node.nodes():
        path.chmod(0o666)
    node.until(lambda: node.open_to(BEN) == SHUT)
    assert node.open_to(ANN) == let_in(render_of(node, lease))


def test_turned_off_everything_is_as_before(node: ServedNode) -> None:
    """A start with gate = off puts modes and ACLs back and forgets them; a stop alone leaves them."""
    node.start("acl")
    node.grant(ANN, *SMALL)
    node.stop()
    assert node.open_to(BEN) == SHUT
    assert node.record.exists()
    node.start("off")
    node.until(lambda: not node.record.exists())
    assert node.modes() == {0o666}
    assert (node.open_to(ANN), node.open_to(BEN)) == (LET_IN, LET_IN)


@pytest.mark.parametrize("on_leftover", ["report", "kill"])
@pytest.mark.parametrize("by", ["descriptor", "mapping"])
def test_who_has_a_node_from_before_is_named_and_killed_if_the_site_says_so(
    node: ServedNode, by: str, on_leftover: str
) -> None:
    """Threat 21: by a descriptor or by a mapping alone, with its pid and uid; it works on unless killed."""
    pid = node.keep_kfd_open(ANN, by)
    node.start("acl", on_leftover=on_leftover)
    (told,) = node.until(lambda: node.events("gate_leftover"))
    assert told["data"] == {"pid": pid, "uid": ANN, "killed": on_leftover == "kill"}
    (keeper,) = node.keepers
    if on_leftover == "kill":
        assert keeper.wait(30) == -9
    else:
        assert keeper.poll() is None
    assert node.open_to(ANN) == SHUT
