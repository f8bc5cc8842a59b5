"""Which containers bear the ticket of a lease, as their engine lists them."""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.domain.container import TICKET_LABEL, Engine, Seen
from nodeagent.domain.docker_ticket import digest
from nodeagent.domain.lease import Lease
from nodeagent.ledger.ledger import Ledger
from nodeagent.service.contained import CONTAINER
from nodeagent.service.engines import Engines, Sight


class Bearers:
    """Finds them among what *engines* see."""

    def __init__(self, ledger: Ledger, engines: Engines) -> None:
        self._ledger = ledger
        self.engines = engines

    def of(self, lease: int, sight: Sight) -> Sequence[Seen]:
        """The containers with the ticket of *lease*, the first one first: others copied it from there."""
        return bearing(self._digest(lease), sight)

    def none(self, lease: Lease) -> bool:
        """Whether no container has the lease's ticket now, by its engine's word; asks for that.

        True also of an engine that cannot be asked by anybody; False of one that does not answer.
        """
        held = lease.anchor.container
        return held is None or self.none_shows(self._digest(lease.id), held.engine)

    def none_shows(self, said: str | None, engine: Engine) -> bool:
        """The same of the ticket of that digest."""
        if engine is Engine.NERDCTL:
            return True
        sight = self.engines.look_again(engine)
        return sight is not None and not bearing(said, sight)

    def _digest(self, lease: int) -> str | None:
        entries = self._ledger.journals([lease], (CONTAINER,)).get(lease, ())
        said = [(one.evidence or {}).get("ticket") for one in entries]
        return next((one for one in said if isinstance(one, str)), None)


def bearing(said: str | None, sight: Sight) -> Sequence[Seen]:
    """The containers with the ticket of the digest *said*, the first one first; none where there is none."""
    found = [one for one in sight.containers.values() if _digest_of(one) == said]
    return sorted(found, key=lambda one: (one.created, one.id)) if said else ()


def _digest_of(seen: Seen) -> str | None:
    ticket = seen.labels.get(TICKET_LABEL)
    return None if ticket is None else digest(ticket)
