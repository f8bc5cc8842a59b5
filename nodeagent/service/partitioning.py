"""Compute partition modes: shown, and changed on a card that nobody uses.

A switch is written down before the kernel is asked, and until the card has been read twice in one mode with
all its devices there. Who dies in between leaves it to the next look, at the latest to the next start's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from nodeagent.adapters.partitions import Busy, PartitionFiles
from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.device import Device
from nodeagent.domain.errors import AgentError, NotAllowed, UnknownThing
from nodeagent.domain.partition import Card, Switch, cards, choices, devices_in, mode_of
from nodeagent.domain.records import Json
from nodeagent.domain.refusals import Code, DeviceRefusal, Refusal
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.changes import Changes
from nodeagent.service.orders import Caller
from nodeagent.service.rights import must_administer
from nodeagent.service.survey import Survey

log = structlog.get_logger()

Holders = Callable[[frozenset[int]], Mapping[int, str]]  # by pid, who has GPUs of these gpu_ids open
GRACE_SECONDS = 15  # in which a card may say another mode than was written, or lack devices of the new one
PAUSE_SECONDS = 0.1  # between two looks while somebody waits
_IN_THE_WAY = "end these leases, and the processes, monitors that opened /dev/kfd too; then ask again"


class Partitioning:
    """One switch at a time. *writable*: whether a kernel would switch; none does on a simulated node."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        survey: Survey,
        changes: Changes,
        files: PartitionFiles,
        holders: Holders,
        *,
        writable: bool = True,
        chosen: Mapping[str, str] = {},
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._survey = survey
        self._changes = changes
        self._files = files
        self._holders = holders
        self._writable = writable
        self._chosen = dict(chosen)  # what a start puts right, once
        self._one = threading.Lock()
        self._told: set[str] = set()

    # -- what there is ------------------------------------------------------------------------------

    def cards(self, caller: Caller) -> tuple[Card, ...]:
        """Every card with its modes."""
        must_administer(caller)
        return self._cards()

    def _cards(self) -> tuple[Card, ...]:
        switching = self._survey.switches.current()
        return tuple(
            Card(
                pci,
                devices[0].product,
                devices[0].gfx,
                self._files.modes(pci),
                devices,
                switching[pci].to if pci in switching else None,
            )
            for pci, devices in cards(self._survey.found()).items()
        )

    def _card(self, pci: str) -> Card:
        for card in self._cards():
            if card.pci == pci:
                return card
        raise UnknownThing(f"there is no card {pci}")

    # -- switching ----------------------------------------------------------------------------------

    def switch(self, caller: Caller, pci: str, text: str, wait_seconds: float = 0) -> Card | Refusal:
        """Put the card into the mode *text*; the card comes back as it is after *wait_seconds* at most.

        It is `switching` as long as the kernel has not shown the mode twice, and every device of it.

        Raises:
            NotAllowed: no administrator, or no kernel that would switch.
            UnknownThing, InvalidField: there is no such card, or it has no such mode now.
            OutsideFault: the kernel would not, or it could not be written down that it is to.
        """
        must_administer(caller)
        with self._one:
            refusal = self._begin(pci, text, caller.uid)
        if refusal is not None:
            return refusal
        until = time.monotonic() + wait_seconds
        while not self._settled(pci) and time.monotonic() < until:
            time.sleep(PAUSE_SECONDS)
        return self._card(pci)

    def _begin(self, pci: str, text: str, uid: int | None) -> Refusal | None:
        card = self._card(pci)
        mode = mode_of(text, card)
        if card.switching or card.modes.compute is None:
            raise NotAllowed(f"the card {pci} is being switched to {card.switching} already")
        if card.modes.compute == mode:
            return None
        if not self._writable:
            raise NotAllowed("this node is simulated: there is no kernel that would switch its cards")
        # First closed, then looked at: what was booked before is seen, and what comes later is not booked.
        switch = Switch(pci, card.modes.compute, mode, card.xccs, uid, self._clock.boot_ns())
        self._survey.switches.begin(switch)
        try:
            refusal = self._in_the_way(card) or self._ask(card, switch)
        except Exception:
            # What the card is now is for the next look to find out: nothing more is waited for.
            self._survey.switches.begin(replace(switch, at_ns=switch.at_ns - 2 * GRACE_SECONDS * SECOND_NS))
            raise
        if refusal is not None:
            self._survey.switches.end(pci)
            self._changes.announce()
        return refusal

    def _in_the_way(self, card: Card) -> Refusal | None:
        """Leases with a slice of the card, quarantined ones too, and processes that KFD counts on it."""
        keys = {device.key for device in card.devices}
        with self._ledger.write() as tx:  # after whoever is booking now
            held = [one for one in tx.held() if one.placed.device in keys]
        leases = {key: sorted({one.lease for one in held if one.placed.device == key}) for key in keys}
        processes = self._holders(_gpu_ids(card.devices))
        if not held and not processes:
            return None
        return _refused(card, leases, processes)

    def _ask(self, card: Card, switch: Switch) -> Refusal | None:
        self._tell(switch, kind="partitioning", reason=f"{switch.before} to {switch.to}")
        log.info("switching a card", pci=switch.pci, before=switch.before, to=switch.to)
        try:
            self._files.switch(switch.pci, switch.to)
        except Busy as busy:
            self._tell(switch, kind="partition_failed", reason=busy.why)
            return _refused(card, {}, self._holders(_gpu_ids(card.devices)), busy.why)
        return None

    # -- finding out --------------------------------------------------------------------------------

    def look(self) -> None:
        """Finish what has begun, also before this process; after a start put the site's choice right."""
        for pci in self._survey.switches.current():
            self._settled(pci)
        if self._chosen:
            chosen, self._chosen = self._chosen, {}
            self._apply(chosen)

    def _apply(self, chosen: Mapping[str, str]) -> None:
        for choice in choices(chosen, self._cards()):
            pci = choice.card.pci
            if choice.met or choice.card.switching:
                continue
            try:
                with self._one:
                    refusal = None if choice.wrong else self._begin(pci, choice.mode, None)
                why = choice.wrong or (refusal.why if refusal else None)
            except AgentError as fault:
                why = str(fault)
            if why is not None:
                log.error("a card is not as the site wants it", pci=pci, wanted=choice.mode, why=why)

    def _settled(self, pci: str) -> bool:
        """Whether the card has been read twice in one mode, with what it is divided into; then it is told."""
        if not self._one.acquire(blocking=False):  # the kernel is at it
            return False
        try:
            return self._looked_at(pci)
        finally:
            self._one.release()

    def _looked_at(self, pci: str) -> bool:
        switch = self._survey.switches.current().get(pci)
        if switch is None:
            return True
        first = self._files.compute(pci)
        self._survey.look_again()
        second = self._files.compute(pci)
        devices = cards(self._survey.found()).get(pci, ())
        late = self._clock.boot_ns() - switch.at_ns > GRACE_SECONDS * SECOND_NS
        if first is None or first != second or not _shown(devices, second):
            if late and pci not in self._told:
                self._told.add(pci)
                log.error("a card does not come back", pci=pci, first=first, second=second)
            return False
        whole = second == switch.to and len(devices) == devices_in(second, switch.xccs)
        if not whole and not late:
            return False
        self._over(switch, second, devices)
        return True

    def _over(self, switch: Switch, mode: str, devices: Sequence[Device]) -> None:
        """Say what the card is now, and grant on it again. Said twice, if the agent dies in between."""
        expected = devices_in(mode, switch.xccs)
        if mode != switch.to:
            why = f"it is {mode} as it was" if mode == switch.before else f"it reads back as {mode}"
            self._tell(switch, kind="partition_failed", reason=f"{why}, and not {switch.to}")
        else:
            few = "" if len(devices) == expected else f", with {len(devices)} devices instead of {expected}"
            self._tell(
                switch, kind="partitioned", reason=f"{switch.before} to {mode}{few}", devices=len(devices)
            )
        self._survey.forget(switch.pci)
        self._survey.switches.end(switch.pci)
        self._told.discard(switch.pci)
        self._changes.announce()

    def _tell(self, switch: Switch, *, kind: str, reason: str, **more: int) -> None:
        data: dict[str, Json] = {"pci": switch.pci, "before": switch.before, "to": switch.to, **more}
        with self._ledger.write(release=True) as tx:
            tx.event(kind, uid=switch.uid, reason=f"card {switch.pci}: {reason}", data=data)


def _gpu_ids(devices: Sequence[Device]) -> frozenset[int]:
    return frozenset(device.gpu_id for device in devices if device.gpu_id)


def _shown(devices: Sequence[Device], mode: str | None) -> bool:
    """Whether the scan saw the card, and in this mode all over."""
    return bool(devices) and all(device.compute_partition == mode for device in devices)


def _refused(
    card: Card, leases: Mapping[str, Sequence[int]], processes: Mapping[int, str], kernel: str | None = None
) -> Refusal:
    every = sorted({lease for ids in leases.values() for lease in ids})
    who = [f"lease {lease}" for lease in every]
    who += [f"process {pid}{name and f' ({name})'}" for pid, name in sorted(processes.items())]
    why = ", ".join(who) or kernel or "it is in use"
    return Refusal(
        Code.CARD_IN_USE,
        f"the card {card.pci} is in use: {why}",
        _IN_THE_WAY,
        tuple(
            DeviceRefusal(device.key, Code.CARD_IN_USE, "holds a lease", tuple(ids))
            for device in card.devices
            if (ids := leases.get(device.key))
        ),
    )
