"""Partition modes of cards on a machine whose kernel switches them, with its traps."""

from __future__ import annotations

import pytest
from partitioned_card import BROKEN, BUSY, NOT_TAKEN, ImitatedKernel
from service_builders import House, admin, order_of, user

from nodeagent.adapters import machine
from nodeagent.adapters.discovery import discover
from nodeagent.config import Partitions
from nodeagent.domain.device import DeviceState
from nodeagent.domain.errors import InvalidField, LedgerUnavailable, NotAllowed, OutsideFault, UnknownThing
from nodeagent.domain.guarantee import Compute
from nodeagent.domain.lease import LeaseState
from nodeagent.domain.ownership import Asker
from nodeagent.domain.partition import Card, Switch
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.service.orders import Granted
from nodeagent.service.partitioning import GRACE_SECONDS

PCI, OTHER = "0000:05:00.0", "0000:27:00.0"
FIRST = f"{PCI}/0"


class DiesError(BaseException):
    """The agent dies at this instruction."""


@pytest.fixture
def kernel() -> ImitatedKernel:
    return ImitatedKernel()


@pytest.fixture
def house(build, kernel: ImitatedKernel) -> House:
    """Eight MI300X in SPX."""
    return build("mi300x-spx", files=kernel.files)


def kinds(house: House) -> list[str]:
    return [one.kind for one in house.ledger.events(limit=500) if one.kind.startswith("partition")]


def on_card(house: House) -> list[str]:
    return [one.key for one in house.survey.inventory().devices if one.pci == PCI]


def card(house: House, pci: str = PCI) -> Card:
    return next(one for one in house.agent.partitions.cards(admin()) if one.pci == pci)


def put(house: House, mode: str, pci: str = PCI) -> Card | Refusal:
    return house.agent.partitions.switch(admin(), pci, mode)


def test_a_card_is_shown_with_what_it_can_be(house: House, kernel: ImitatedKernel) -> None:
    """Modes as the kernel lists them, the memory's too, and how VRAM is dealt where it says."""
    (kernel.root / f"sys/bus/pci/devices/{PCI}/compute_partition_mem_alloc_mode").write_text("CAPPING\n")
    shown = card(house)
    assert (shown.product, shown.modes.compute, shown.modes.memory) == ("AMD Instinct MI300X", "SPX", "NPS1")
    assert shown.modes.computes == ("SPX", "DPX", "QPX", "CPX")
    assert (shown.modes.memories, shown.modes.alloc) == (("NPS1", "NPS4"), "CAPPING")
    assert card(house, OTHER).modes.alloc is None


def test_a_card_is_divided_anew_and_made_whole_again(house: House, kernel: ImitatedKernel) -> None:
    """Each device is in a new epoch with its own numbers, none of before is left, and the others stay."""
    before = {one.key: one for one in house.survey.inventory().devices}
    divided = put(house, "cpx")
    assert isinstance(divided, Card)
    assert (divided.modes.compute, divided.switching, len(divided.devices)) == ("CPX", None, 8)
    assert on_card(house) == [f"{PCI}/{index}" for index in range(8)]
    now = {one.key: one for one in house.survey.inventory().devices}
    assert now[FIRST].epoch == before[FIRST].epoch + 1
    assert now[FIRST].gpu_id != before[FIRST].gpu_id
    assert {one.cus for one in divided.devices} == {38}
    assert (now[f"{OTHER}/0"].epoch, now[f"{OTHER}/0"].uuid) == (
        before[f"{OTHER}/0"].epoch,
        before[f"{OTHER}/0"].uuid,
    )
    whole = put(house, "SPX")
    assert isinstance(whole, Card)
    assert [one.key for one in whole.devices] == on_card(house) == [FIRST]
    assert whole.devices[0].epoch == before[FIRST].epoch + 2
    assert kinds(house) == ["partitioning", "partitioned"] * 2
    assert kernel.written == [(PCI, "CPX"), (PCI, "SPX")]


def test_a_divided_card_is_what_such_a_machine_shows(house: House) -> None:
    """The imitation makes of an SPX card what the machine file of a real CPX node has."""
    put(house, "cpx")
    root, real = house.root.with_name("cpx"), machine.find("mi300x-cpx")
    machine.materialise(real, root)
    there = {one.key: one for one in discover(machine.SimulatedTree(root, real)).devices}
    for one in card(house).devices:
        known = there[one.key]
        assert (one.geometry, one.vram_bytes, one.pool) == (known.geometry, known.vram_bytes, known.pool)
        assert (one.compute_partition, one.partition) == (known.compute_partition, known.partition)


def test_a_whole_partition_is_a_hard_slice(house: House) -> None:
    """What holds it is the hardware: guarantee compute partition, and no mask."""
    put(house, "cpx")
    lease = house.grant(partition=True)
    assert lease.slices[0].placed.device in on_card(house)
    assert lease.guarantee.compute is Compute.PARTITION
    assert (lease.environment or {}).get("HSA_CU_MASK") is None


def test_the_same_mode_again_changes_nothing(house: House, kernel: ImitatedKernel) -> None:
    """A card that is as asked is not written to, and nothing is told."""
    assert isinstance(put(house, "spx"), Card)
    assert (kernel.written, kinds(house)) == ([], [])


@pytest.mark.parametrize(
    ("pci", "mode", "fault"),
    [
        (PCI, "tpx", InvalidField),  # not in available_compute_partition
        (PCI, "nps4", InvalidField),  # memory modes are never written
        (PCI, "cpx\nSPX", InvalidField),
        ("0000:99:00.0", "cpx", UnknownThing),
        ("../../../etc", "cpx", UnknownThing),
    ],
)
def test_what_cannot_be_is_never_written(house: House, kernel: ImitatedKernel, pci, mode, fault) -> None:
    """Only a mode that the kernel lists, to the file of a card that is there."""
    with pytest.raises(fault):
        put(house, mode, pci)
    assert kernel.written == []


def test_only_administrators_see_and_switch(house: House) -> None:
    """Neither the list nor the change is for users."""
    with pytest.raises(NotAllowed):
        house.agent.partitions.switch(user(), PCI, "cpx")
    with pytest.raises(NotAllowed):
        house.agent.partitions.cards(user())


def test_a_simulated_node_has_nobody_to_switch(build) -> None:
    """A mode file that no kernel reads is not written."""
    house = build("mi300x-spx")
    with pytest.raises(NotAllowed, match="simulated"):
        put(house, "cpx")
    assert card(house).modes.compute == "SPX"


def test_leases_and_processes_stand_in_the_way(house: House, kernel: ImitatedKernel) -> None:
    """All of them are named, monitors that use nothing too; then the card grants as before."""
    lease = house.grant(cus=32, device=(FIRST,))
    kernel.hold(4711, PCI)
    kernel.hold(4712, OTHER)
    refusal = put(house, "cpx")
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.blockers) == (Code.CARD_IN_USE, (lease.id,))
    assert f"lease {lease.id}, process 4711" in refusal.why
    assert "4712" not in refusal.why
    assert (kernel.written, kinds(house), card(house).switching) == ([], [], None)
    assert house.grant(cus=32, device=(FIRST,)).state is LeaseState.ACTIVE


def test_a_quarantined_slice_stands_in_the_way(build, kernel: ImitatedKernel, effect) -> None:
    """What is not proved clean may still be used by what nobody sees."""
    house = build("mi300x-spx", files=kernel.files, effect=effect)
    lease = house.grant(cus=8, device=(FIRST,))
    effect.script = {"undo": ["stuck"] * 1000}
    house.agent.release(admin(), lease.id)
    house.settle()
    refusal = put(house, "cpx")
    assert isinstance(refusal, Refusal)
    assert refusal.blockers == (lease.id,)


def test_the_kernels_no_is_a_refusal(house: House, kernel: ImitatedKernel) -> None:
    """EBUSY: a process came in after the look, or its end is not through; nothing has changed."""
    kernel.traps = [BUSY]
    refusal = put(house, "cpx")
    assert isinstance(refusal, Refusal)
    assert (refusal.code, "is ending" in refusal.why) == (Code.CARD_IN_USE, True)
    assert kinds(house) == ["partitioning", "partition_failed"]
    assert (card(house).modes.compute, card(house).switching) == ("SPX", None)


def test_nothing_is_granted_on_a_card_that_is_switched(house: House, kernel: ImitatedKernel) -> None:
    """Whoever asks while the kernel is at it is refused that card, and gets another."""
    outcomes = []

    def ask() -> None:
        outcomes.append(house.agent.grant(user(), order_of(cus=8, device=(FIRST,))))
        outcomes.append(house.agent.grant(user(), order_of(cus=8)))

    kernel.on_write = ask
    assert isinstance(put(house, "cpx"), Card)
    refused, granted = outcomes
    assert (refused.devices[0].device, refused.devices[0].code) == (FIRST, Code.CARD_CORDONED) or any(
        one.code is Code.CARD_CORDONED for one in refused.devices
    )
    assert isinstance(granted, Granted)
    assert granted.lease.slices[0].placed.device != FIRST


def test_a_slice_that_was_chosen_before_is_not_booked(house: House) -> None:
    """A search runs without the ledger's lock: what it found on a card that is closed since is no more."""
    placer, order = house.granter._booker._placer, order_of(cus=8, device=(FIRST,))
    draft = placer.draft(1, Asker(), house.survey.inventory(), (), order.request)
    assert not isinstance(draft.placed, Refusal)
    house.survey.switches.begin(Switch(PCI, "SPX", "CPX", 8, 0, house.clock.boot_ns()))
    late = placer.settle(draft, ())
    assert isinstance(late, Refusal)
    assert (late.code, late.devices[0].device) == (Code.CARD_CORDONED, FIRST)


def test_a_card_that_comes_back_later_is_waited_for(house: House, kernel: ImitatedKernel) -> None:
    """Until all its devices are there it grants nothing; then the reconciler says so."""
    kernel.traps = [lambda: None]
    with pytest.raises(UnknownThing):
        put(house, "cpx")
    house.look()
    assert kinds(house) == ["partitioning"]
    kernel.come_back()
    house.look()
    assert kinds(house) == ["partitioning", "partitioned"]
    assert (len(on_card(house)), card(house).switching) == (8, None)


def test_a_mode_that_is_not_taken_is_told(house: House, kernel: ImitatedKernel) -> None:
    """A write that succeeded and did nothing: the card is granted again, in the mode that it has."""
    kernel.traps = [NOT_TAKEN]
    assert put(house, "cpx").switching == "CPX"
    house.clock.turn(GRACE_SECONDS + 1)
    house.look()
    assert kinds(house) == ["partitioning", "partition_failed"]
    assert house.ledger.events(limit=500)[-1].reason == f"card {PCI}: it is SPX as it was, and not CPX"
    assert house.grant(cus=8, device=(FIRST,)).state is LeaseState.ACTIVE


def test_one_reading_is_not_believed(house: House, kernel: ImitatedKernel) -> None:
    """The file says the mode, and what the card is divided into does not: it is not over."""
    kernel.traps = [NOT_TAKEN]
    put(house, "cpx")
    kernel.say(PCI, "CPX")
    house.look()
    assert card(house).switching == "CPX"
    device = house.survey.inventory().device(FIRST)
    assert device is not None
    assert device.state is DeviceState.DRAINING


def test_a_mode_that_reads_back_as_another_is_not_believed(house: House, kernel: ImitatedKernel) -> None:
    """Two readings that differ, the scan between them, are no answer, however long it takes."""
    kernel.traps = [NOT_TAKEN]
    put(house, "cpx")
    house.clock.turn(GRACE_SECONDS + 1)
    said = iter(["CPX", "SPX"])
    files = house.partitioning._files
    house.partitioning._files = type("Fickle", (), {"compute": lambda self, pci: next(said)})()
    house.look()
    house.partitioning._files = files
    assert card(house).switching == "CPX"


def test_a_card_with_fewer_partitions_than_its_mode_has_is_told(house: House, kernel: ImitatedKernel) -> None:
    """The kernel has 64 platform devices at most: after a while what is there is what there is."""
    kernel.traps = [NOT_TAKEN]
    put(house, "cpx")
    kernel.say(PCI, "CPX")
    house.clock.turn(GRACE_SECONDS + 1)
    house.look()
    told = house.ledger.events(limit=500)[-1]
    assert (told.kind, told.reason) == ("partitioned", f"card {PCI}: SPX to CPX, with 1 devices instead of 8")


def test_a_card_that_broke_is_told(house: House, kernel: ImitatedKernel) -> None:
    """EIO: KFD did not start again. The fault names the file, and the next look says what the card is."""
    kernel.traps = [BROKEN]
    with pytest.raises(OutsideFault, match="current_compute_partition: the kernel switched and could not"):
        put(house, "cpx")
    assert card(house).switching == "CPX"
    house.look()
    assert kinds(house) == ["partitioning", "partition_failed"]


def test_what_cannot_be_written_down_is_not_begun(house: House, kernel: ImitatedKernel, monkeypatch) -> None:
    """A disk that takes nothing: the kernel is not asked."""

    def full(entries: object) -> None:
        raise OutsideFault("switches", "no space")

    monkeypatch.setattr(house.survey.switches._kept, "put", full)
    with pytest.raises(OutsideFault, match="no space"):
        put(house, "cpx")
    assert (kernel.written, card(house).switching) == ([], None)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "step",
    [
        "survey.switches.begin",
        "partitioning._in_the_way",
        "partitioning._tell",
        "partitioning._files.switch",
        "survey.look_again",
        "survey.forget",
        "survey.switches.end",
    ],
)
def test_a_start_finds_out_what_a_death_left(build, kernel: ImitatedKernel, step, late) -> None:
    """Wherever the agent dies, before an act or after: the card is in one mode, told, and granted again."""
    first = build("mi300x-spx", files=kernel.files)
    *path, name = step.split(".")
    owner = first
    for part in path:
        owner = getattr(owner, part)
    act = getattr(owner, name)

    def dies(*arguments: object, **named: object) -> None:
        if late:
            act(*arguments, **named)
        raise DiesError

    setattr(owner, name, dies)
    with pytest.raises(DiesError):
        put(first, "cpx")
    first.die()
    second = build("mi300x-spx", files=kernel.files)
    second.clock.turn(GRACE_SECONDS + 1)
    second.look()
    assert second.survey.switches.current() == {}
    found = card(second)
    assert found.modes.compute == ("CPX" if kernel.written else "SPX")
    assert len(found.devices) == len(on_card(second)) == (8 if kernel.written else 1)
    assert {one.state for one in found.devices} == {DeviceState.HEALTHY}
    told = kinds(second)[-1:]
    assert told in ([["partitioned"]] if kernel.written else [["partition_failed"], []])
    assert second.grant(cus=8, device=(FIRST,)).state is LeaseState.ACTIVE


def test_what_a_death_left_is_closed_until_it_is_known(build, kernel: ImitatedKernel) -> None:
    """A start that finds the old mode waits for the new one to show, and grants nothing meanwhile."""
    first = build("mi300x-spx", files=kernel.files)
    kernel.traps = [NOT_TAKEN]
    put(first, "cpx")
    first.die()
    device = build("mi300x-spx", files=kernel.files).survey.inventory().device(FIRST)
    assert device is not None
    assert device.state is DeviceState.DRAINING


def test_a_reboot_ends_a_switch(build, kernel: ImitatedKernel) -> None:
    """The driver starts in a mode of its own: nothing is waited for."""
    first = build("mi300x-spx", files=kernel.files)
    kernel.traps = [NOT_TAKEN]
    put(first, "cpx")
    first.die()
    first.clock.reboot()
    assert build("mi300x-spx", files=kernel.files).survey.switches.current() == {}


def test_a_sick_ledger_switches_nothing(house: House, kernel: ImitatedKernel) -> None:
    """Who may be on the card is not known then."""
    house.ledger.close()
    with pytest.raises(LedgerUnavailable):
        put(house, "cpx")
    assert kernel.written == []


def test_the_sites_choice_is_put_right_at_the_start(build, kernel: ImitatedKernel) -> None:
    """By address before product; a card in use stays as it is, and is not tried again."""
    modes = {"MI300X": "spx", PCI: "cpx", "27:00.0": "qpx", "gfx90a": "cpx", "0000:47:00.0": "tpx"}
    site = {"partitions": Partitions(modes=modes, apply_at_start=True)}

    def files(tree):
        made = kernel.files(tree)
        kernel.hold(4711, OTHER)
        return made

    house = build("mi300x-spx", files=files, config=site)
    house.look()
    assert (card(house).modes.compute, len(on_card(house))) == ("CPX", 8)
    assert kernel.written == [(PCI, "CPX")]
    kernel.end(4711)
    house.look()
    assert card(house, OTHER).modes.compute == "SPX"


def test_the_agent_divides_nothing_that_it_is_not_told_to(build, kernel: ImitatedKernel) -> None:
    """The modes alone are what `apply` and `assert` compare with."""
    build("mi300x-spx", files=kernel.files, config={"partitions": Partitions(modes={PCI: "cpx"})}).look()
    assert kernel.written == []
