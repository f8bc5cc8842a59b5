"""Idle baselines: learned while nobody works on a pool, kept over a restart, and never raised in silence."""

from __future__ import annotations

from functools import partial

import pytest
from service_builders import GIB, House, admin, node_directory
from service_world import TurnedClock

from nodeagent.domain.baseline import LOOKS, Baseline, settled
from nodeagent.domain.lease import LeaseState
from nodeagent.domain.watch import KfdUse
from nodeagent.ledger import boot_file
from nodeagent.ledger.boot_file import BootFile
from nodeagent.service.baselines import IdleUse
from nodeagent.service.sampling import Sampler, Sources
from nodeagent.wiring.node import used_bytes

MIB = 1 << 20
CARD = "0000:03:00.0"
IDLE = 100 * MIB


class Card:
    """One card's counter, and the watch's looks at it. *users* is what KFD says of processes."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.users: list[KfdUse] = []
        tree = house.survey._scan.__self__._tree  # the scanner's
        sources = Sources(lambda pids: tuple(self.users), lambda pids: (), lambda pids: 0)
        self.sampler = Sampler(house.ledger, house.clock, house.survey, house.tree, sources)
        self.doubts: tuple[str, ...] = ()
        used = partial(used_bytes, tree)
        self.idle_use = IdleUse(house.ledger, house.survey, house.baselines, used, lambda: self.doubts)

    def use(self, size: int | str) -> None:
        path = self.house.root / f"sys/bus/pci/devices/{CARD}/mem_info_vram_used"
        path.write_text(f"{size}\n")

    def look(self, times: int = 1) -> int | None:
        """What the baseline is after so many looks."""
        for _ in range(times):
            self.idle_use.note(self.sampler.look())
        return self.house.baselines.idle(CARD)

    def rises(self) -> list[object]:
        return [event.data for event in self.house.ledger.events(limit=1000) if event.kind == "baseline_rose"]

    def grantable(self) -> int:
        pool = self.house.survey.found().pool(CARD)
        assert pool is not None
        return pool.grantable_bytes


@pytest.fixture
def card(build) -> Card:
    """A card that uses 100 MiB while nobody works on it, and was seen so."""
    card = Card(build("mi210"))
    card.use(IDLE)
    assert card.look() == IDLE
    return card


def grant_on(house: House, **wanted: int):
    return house.grant(device=(f"{CARD}/0",), **(wanted or {"cus": 8}))


def baseline_in(house: House, lease_id: int) -> object:
    """What the lease's journal says that its release is to be proved by."""
    (effect,) = [one for one in house.ledger.effects(lease_id) if one.kind == "vram"]
    return effect.arguments["pools"][CARD]["idle_bytes"]


@pytest.mark.parametrize(
    ("known", "readings", "moved"),
    [
        (IDLE, [GIB] * (LOOKS - 1), IDLE),  # too few looks
        (IDLE, [GIB, 2 * GIB, 3 * GIB], GIB),
        (GIB, [0, IDLE, 2 * IDLE], 2 * IDLE),
        (IDLE, [0, GIB, GIB], IDLE),  # one look of another mind
        (IDLE, [IDLE + MIB] * LOOKS, IDLE),  # less than counts
    ],
)
def test_a_baseline_moves_as_far_as_all_looks_agree(known: int, readings: list[int], moved: int) -> None:
    """A process that came or went during one look moves nothing."""
    assert settled(known, readings) == moved


def test_what_an_idle_card_uses_is_not_granted(card: Card) -> None:
    """From the first look that learned it on, and the release of the next lease is proved by it."""
    assert card.grantable() <= 64 * GIB - IDLE
    assert baseline_in(card.house, grant_on(card.house).id) == IDLE


def test_an_agent_restarted_under_a_lease_still_proves_releases(card: Card, build) -> None:
    """The card's baseline is that of before, for the lease that lived and for the next one."""
    first = grant_on(card.house)
    card.house.die()
    card.use(4 * GIB)
    again = Card(build("mi210"))
    assert again.look(LOOKS + 1) == IDLE
    second = grant_on(again.house)
    assert baseline_in(again.house, second.id) == IDLE
    assert again.house.release(second).state is LeaseState.FAILED  # 4 GiB, and no process says so
    again.use(IDLE)
    again.house.clock.turn(61)
    assert again.house.release(first).state is LeaseState.RELEASED


def test_no_card_is_idle_while_the_ledger_may_not_know_of_a_lease(build) -> None:
    """After a ledger was lost what is used may be a lease's, until that was put back."""
    card = Card(build("mi210"))
    card.doubts = ("the ledger lost lease 7",)
    card.use(4 * GIB)
    assert card.look(LOOKS) is None
    card.doubts = ()
    card.use(IDLE)
    assert card.look() == IDLE


def test_a_leaked_card_is_not_idle(card: Card, build) -> None:
    """A quarantined slice keeps its card from being learned from, after a restart too."""
    lease = grant_on(card.house)
    card.use(46 * GIB)
    assert card.house.release(lease).state is LeaseState.FAILED
    assert card.look(LOOKS + 1) == IDLE
    card.house.die()
    again = Card(build("mi210"))
    assert again.look(LOOKS + 1) == IDLE
    assert again.rises() == []


def test_who_forces_a_leaked_slice_free_takes_the_leak_for_idle(card: Card) -> None:
    """Then the card can be granted from again, less what leaked; the event says how much that is."""
    lease = grant_on(card.house)
    card.use(5 * GIB)
    assert card.house.release(lease).state is LeaseState.FAILED
    card.house.agent.clear_lease(admin(), lease.id, force=True)
    assert card.look(LOOKS - 1) == IDLE
    assert card.look() == 5 * GIB
    assert card.rises() == [{"pool": CARD, "before_bytes": IDLE, "idle_bytes": 5 * GIB}]
    assert card.house.release(grant_on(card.house)).state is LeaseState.RELEASED


def test_a_baseline_never_rises_in_silence(card: Card) -> None:
    """When nobody holds the card, what stays on it is granted no more, and an event says how much that is."""
    before = card.grantable()
    card.use(5 * GIB)
    assert card.look(LOOKS) == 5 * GIB
    assert card.rises() == [{"pool": CARD, "before_bytes": IDLE, "idle_bytes": 5 * GIB}]
    assert before - card.grantable() >= 5 * GIB - IDLE
    card.use(IDLE)
    assert card.look(LOOKS) == IDLE
    assert (len(card.rises()), card.grantable()) == (1, before)


def test_what_foreign_users_hold_is_no_baseline(card: Card, children) -> None:
    """It is taken off where they are counted, once, and comes back when they end."""
    device = card.house.survey.found().device(f"{CARD}/0")
    (node_directory(card.house.root, device.kfd_node) / "gpu_id").write_text("51\n")  # copied trees lack it
    card.house.survey.rescan()
    card.users = [KfdUse(children.sleeper().pid, 51, 2 * GIB)]
    card.use(2 * GIB + IDLE)
    assert card.look(LOOKS + 1) == IDLE
    assert card.rises() == []


@pytest.mark.parametrize("changed", ["boot", "epoch"])
def test_a_baseline_of_another_boot_or_epoch_is_void(card: Card, build, changed: str) -> None:
    """A rebooted or newly partitioned card is as good as never seen; the first idle look learns it anew."""
    card.house.die()
    card.use(GIB)
    house = build("mi210") if changed == "epoch" else None
    if house is None:
        card.house.clock.reboot()
        house = build("mi210")
    else:
        properties = (
            node_directory(house.root, house.survey.found().device(f"{CARD}/0").kfd_node) / "properties"
        )
        properties.write_text(properties.read_text().replace("simd_count 416", "simd_count 208"))
        house.survey.rescan()
    assert house.baselines.idle(CARD, house.survey.found()) is None
    again = Card(house)
    assert again.look() == GIB
    assert again.rises() == []


def test_an_unreadable_counter_keeps_the_baseline(card: Card) -> None:
    """A counter that fails does not make the idle bytes grantable."""
    card.use("")
    assert card.look(LOOKS + 1) == IDLE


def test_a_damaged_file_is_as_good_as_none(tmp_path) -> None:
    """The agent starts, and learns anew."""
    entry = '{"boot_id": "boot-a", "entries": {"a": %s}}'
    for text in ("", "[]", entry % "1", entry % '{"epochs": {}, "idle_bytes": -1}', "[" * 9999):
        (tmp_path / "baselines").write_text(text)
        assert BootFile(tmp_path / "baselines", TurnedClock(), Baseline.of).read() == {}


def test_a_full_disk_costs_the_restart_only(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """A baseline that cannot be written is known all the same."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(boot_file, "write_durably", full)
    card.use(0)
    assert card.look(LOOKS) == 0
