"""Routes of cards: their modes shown, and changed by administrators."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.domain.partition import Modes
from nodeagent.domain.refusals import Code, DeviceRefusal, Refusal

ONE = "/v1/cards/0000:c1:00.0/partition"


def test_cards_show_what_they_are_and_can_be(root, user):
    """Modes of compute and memory, and the devices that a card is divided into; not for users."""
    (card,) = root.get("/v1/partitions").json["cards"]
    assert card == {
        "pci": "0000:c1:00.0",
        "product": "AMD Instinct MI300X",
        "gfx": "gfx942",
        "compute_partition": "SPX",
        "compute_partitions": ["SPX", "DPX", "TPX", "QPX", "CPX"],
        "memory_partition": "NPS1",
        "memory_partitions": ["NPS1", "NPS4"],
        "memory_alloc_mode": "CAPPING",
        "switching": None,
        "devices": ["0000:c1:00.0/0"],
    }
    assert user.get("/v1/partitions").status_code == 403


def test_users_switch_nothing(user):
    """The change of a card is an administrator's."""
    assert user.post(ONE, json={"mode": "cpx"}).status_code == 403


def test_a_card_is_switched(root, agent):
    """200 once it has been read twice, 202 while the kernel has not shown all of it; within five seconds."""
    done = root.post(ONE, json={"mode": "cpx"})
    assert (done.status_code, done.json["compute_partition"]) == (200, "CPX")
    agent.partitions.later = True
    done = root.post(ONE, json={"mode": "spx"})
    assert (done.status_code, done.json["switching"]) == (202, "SPX")
    assert max(agent.partitions.waits) < 5


def test_what_no_card_takes_names_its_field(root, agent):
    """A mode that the card has not, one that is none, a card that is not there, nothing at all."""
    agent.partitions.card = replace(agent.partitions.card, modes=Modes("SPX", ("SPX", "CPX")))
    for body, status in (({"mode": "qpx"}, 422), ({"mode": "NPS4"}, 422), ({}, 422)):
        answer = root.post(ONE, json=body)
        assert (answer.status_code, answer.json["field"]) == (status, "mode")
    assert root.post("/v1/cards/0000:99:00.0/partition", json={"mode": "cpx"}).status_code == 404


def test_a_card_in_use_is_a_refusal(root, agent):
    """409 with the leases in the way, and everybody else in the detail."""
    held = DeviceRefusal("0000:c1:00.0/0", Code.CARD_IN_USE, "holds a lease", (1001,))
    why = "the card 0000:c1:00.0 is in use: lease 1001, process 4711 (python3)"
    agent.partitions.outcome = Refusal(Code.CARD_IN_USE, why, "end them", (held,))
    answer = root.post(ONE, json={"mode": "cpx"})
    assert (answer.status_code, answer.json["code"], answer.json["blockers"]) == (409, "CardInUse", [1001])
    assert (answer.json["detail"], answer.json["next"]) == (why, "end them")
