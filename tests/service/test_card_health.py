"""The cards' own counters: what is granted on a card with errors, who is told, and what helps."""

from __future__ import annotations

import threading

import pytest
from service_builders import House, admin, order_of, user

from nodeagent.config import Devices
from nodeagent.domain.device import DeviceState
from nodeagent.domain.errors import NotAllowed
from nodeagent.domain.lease import LeaseState
from nodeagent.domain.refusals import Code, Refusal

MINUTE = 60
KINDS = ("uncorrectable_errors", "errors_acknowledged", "link_degraded", "link_restored")


class Card:
    """The first card of a house, whose files a test writes."""

    def __init__(self, house: House) -> None:
        self.house = house
        first = house.survey.found().devices[0]
        self.key, self.pci = first.key, first.pci

    def write(self, name: str, text: str) -> None:
        path = self.house.root / "sys/bus/pci/devices" / self.pci / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def errors(self, count: int, block: str = "umc") -> None:
        self.write(f"ras/{block}_err_count", f"ue: {count}\nce: 7\n")

    def lanes(self, width: int) -> None:
        self.write("current_link_width", f"{width}\n")
        self.write("max_link_width", "16\n")

    def look(self) -> list[str]:
        """Look a minute later; the kinds of what was told."""
        last = max((event.id for event in self.house.ledger.events(limit=1000)), default=0)
        self.house.clock.turn(MINUTE)
        self.house.look()
        return [one.kind for one in self.house.ledger.events(after=last, limit=1000) if one.kind in KINDS]

    def ask(self):
        return self.house.agent.grant(admin(), order_of(cus=4, device=(self.key,)))

    @property
    def told(self) -> int:
        """How often errors were told of so far."""
        events = self.house.ledger.events(limit=1000)
        return sum(one.kind == "uncorrectable_errors" for one in events)

    @property
    def shown(self):
        return self.house.agent.device(self.key)


@pytest.fixture
def card(house: House) -> Card:
    return Card(house)


def test_nothing_new_goes_onto_a_card_with_uncorrectable_errors(card: Card) -> None:
    """CardNotHealth with block, count and what to do; told once, and once more when there are more."""
    card.errors(2)
    assert card.look() == ["uncorrectable_errors"]
    refusal = card.ask()
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.CARD_NOT_HEALTH
    assert f"umc 2: have the card reset or replaced; `nodeagent clear {card.pci}`" in refusal.why
    assert card.shown.state is DeviceState.UNHEALTHY
    assert card.look() == []
    card.errors(3)
    assert card.look() == ["uncorrectable_errors"]


def test_what_runs_on_the_card_goes_on(card: Card) -> None:
    """The lease stays active and may renew; only grants are refused."""
    lease = card.house.grant(cus=4, device=(card.key,), ttl=900)
    card.errors(1)
    card.look()
    assert card.house.state(lease.id) is LeaseState.ACTIVE
    assert card.house.agent.renew(admin(), lease.id).state is LeaseState.ACTIVE
    card.look()
    assert card.house.state(lease.id) is LeaseState.ACTIVE


def test_an_administrator_takes_the_errors_as_known(card: Card) -> None:
    """The card is granted from again until there is another error; a user may not say so."""
    card.errors(2)
    card.look()
    with pytest.raises(NotAllowed):
        card.house.agent.clear(user(), card.key)
    assert card.house.agent.clear(admin(), card.key).state is DeviceState.HEALTHY
    assert not isinstance(card.ask(), Refusal)
    (event,) = [one for one in card.house.ledger.events(limit=1000) if one.kind == "errors_acknowledged"]
    assert (event.uid, event.data) == (0, {"of": card.pci, "blocks": {"umc": 2}})
    assert card.look() == []
    card.errors(3)
    assert card.look() == ["uncorrectable_errors"]
    assert isinstance(card.ask(), Refusal)


def test_what_was_acknowledged_outlives_a_restart_and_no_reboot(build) -> None:
    """So does what is wrong, before the first look: a card that hangs could not tell it again."""
    card = Card(build())
    card.errors(2)
    card.look()
    card = started_anew(card, build)
    assert card.shown.state is DeviceState.UNHEALTHY
    card.house.agent.clear(admin(), card.key)
    card = started_anew(card, build)
    assert (card.look(), card.shown.state, card.told) == ([], DeviceState.HEALTHY, 1)
    card.house.clock.reboot()
    card = started_anew(card, build)
    card.look()
    assert (card.shown.state, card.told) == (DeviceState.UNHEALTHY, 2)


def started_anew(card: Card, build) -> Card:
    card.house.die()
    return Card(build())


def test_a_site_may_only_be_told(build) -> None:
    """on_uncorrectable = report: granted as ever, with the reason beside the device."""
    card = Card(build(config={"devices": Devices(on_uncorrectable="report")}))
    card.errors(2)
    assert card.look() == ["uncorrectable_errors"]
    assert not isinstance(card.ask(), Refusal)
    assert card.shown.state is DeviceState.HEALTHY
    assert "umc 2" in (card.shown.reason or "")


def test_a_link_below_par_is_told_of_and_closes_nothing(card: Card) -> None:
    """Once when it degrades and once when it is back, by default."""
    card.lanes(8)
    assert card.look() == ["link_degraded"]
    assert not isinstance(card.ask(), Refusal)
    assert f"x8 of x16 at {card.pci}" in (card.shown.reason or "")
    assert card.look() == []
    card.lanes(16)
    assert card.look() == ["link_restored"]
    assert card.shown.reason is None


def test_a_site_may_refuse_a_degraded_link(build) -> None:
    """on_link_degraded = refuse: nothing new until the link is whole, and no clear helps."""
    card = Card(build(config={"devices": Devices(on_link_degraded="refuse")}))
    card.lanes(8)
    card.look()
    assert isinstance(card.ask(), Refusal)
    assert card.house.agent.clear(admin(), card.key).state is DeviceState.UNHEALTHY
    card.lanes(16)
    card.look()
    assert not isinstance(card.ask(), Refusal)


def test_a_card_that_sleeps_is_not_looked_at(card: Card) -> None:
    """What is known of it stays: sleep mends no memory."""
    card.errors(2)
    card.look()
    card.write("power/runtime_status", "suspended\n")
    card.errors(9)
    assert card.look() == []
    assert card.house.survey.uncorrectable() == {card.pci: 2}
    assert card.shown.state is DeviceState.UNHEALTHY


def test_a_card_that_hangs_holds_up_no_other(build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its look is given up, what was known of it stays, and the other cards are looked at."""
    monkeypatch.setattr("nodeagent.service.card_health.CARD_SECONDS", 0.05)
    house = build(name="mi210")
    card, other = Card(house), Card(house)
    other.key, other.pci = next((one.key, one.pci) for one in house.survey.found().devices[1:])
    answer, read = threading.Event(), house.survey.health._read
    hangs = {card.pci: lambda: answer.wait(60)}
    monkeypatch.setattr(
        house.survey.health, "_read", lambda pci, gfx: hangs.get(pci, bool)() or read(pci, gfx)
    )
    other.errors(1)
    try:
        assert card.look() == ["uncorrectable_errors"]
        assert other.shown.state is DeviceState.UNHEALTHY
        assert card.shown.state is DeviceState.HEALTHY
        assert card.look() == []
    finally:
        answer.set()


def test_counters_are_read_once_a_minute(card: Card) -> None:
    """Reading them costs the driver a talk with the card."""
    card.look()
    card.errors(2)
    card.house.clock.turn(MINUTE - 1)
    card.house.look()
    assert card.shown.state is DeviceState.HEALTHY
    card.house.clock.turn(1)
    card.house.look()
    assert card.shown.state is DeviceState.UNHEALTHY
