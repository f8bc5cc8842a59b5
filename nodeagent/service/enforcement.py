"""What is enforced now: the site's modes, and the bypass that an administrator put over them."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from nodeagent.domain.clock import Clock
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.lease import HolderKind
from nodeagent.domain.mode import Bypass, Mode, Modes
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.orders import BypassView

log = structlog.get_logger()


class Enforcement:
    """Asked before each act that holds somebody. *read* gives what is on record: see `BypassFile`."""

    def __init__(
        self,
        clock: Clock,
        ledger: Ledger,
        modes: Modes,
        read: Callable[[], Bypass | None],
    ) -> None:
        self._clock = clock
        self._ledger = ledger
        self.modes = modes
        self._read = read
        self._told: Bypass | None = None
        self.trouble: str | None = None  # why what is on record is no bypass

    def bypass(self) -> Bypass | None:
        """The bypass that is on. One that cannot be believed is none: the log and the status say why."""
        try:
            found, trouble = self._read(), None
        except OutsideFault as fault:
            found, trouble = None, str(fault)
        if trouble != self.trouble:
            self.trouble = trouble
            if trouble is not None:
                log.error("a bypass is not believed", why=trouble)
        return found if found is not None and found.holds(self._clock) else None

    def bypassed(self) -> bool:
        return self.bypass() is not None

    def view(self) -> BypassView | None:
        """The bypass that is on, for people to see."""
        found = self.bypass()
        return None if found is None else BypassView(found, seen=found == self._told)

    def observed(self, kind: HolderKind) -> str | None:
        """Why a new lease of *kind* holds nothing; None: it is enforced."""
        if self.bypassed():
            return "bypass"
        return None if self.modes.of(kind) is Mode.ENFORCE else f"mode.{kind}"

    def opened(self) -> str | None:
        """Why nothing is closed outside leases; None: all that the site closes is.

        What is closed there hits whoever has no lease, and so every holder that is only observed.
        """
        if self.bypassed():
            return "opened by `nodeagent bypass`"
        if observed := self.modes.observed:
            return f"left open, for mode.{observed[0]} observes: it would shut out those without a lease"
        return None

    def look(self) -> None:
        """Tell of a bypass that began or ended since the last look."""
        now, before = self.bypass(), self._told
        if now == before:
            return
        with self._ledger.write(release=True) as tx:
            if now is None:
                tx.event("bypass_off", uid=None, reason="enforced again")
            else:
                data = {"seconds": now.left_seconds(self._clock)}
                tx.event("bypass_on", uid=now.uid, reason=now.reason, data=data)
        self._told = now
        log.warning("the bypass changed", on=now is not None, reason=now and now.reason)
