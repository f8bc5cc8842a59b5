"""What a worker writes of the reloads that the arbiter told it of."""

from __future__ import annotations

from nodeagent.domain.errors import LedgerUnavailable
from nodeagent.service.reloads import Reloads


class Source:
    """Tells what it is given, once."""

    def __init__(self, *messages):
        self.messages = list(messages)

    def fileno(self):
        return 7

    def hear(self):
        told, self.messages = self.messages, []
        return told


def test_each_is_an_event(house):
    """One that succeeded with its keys, one that failed with its reason; both wake who follows the events."""
    reloads = Reloads(
        Source({"changed": ["a.b"]}, {"path": "/e", "reason": "typo"}), house.ledger, house.changes
    )
    woken = []
    house.changes.listen(woken.append)
    assert reloads.hear()
    reloads.act()
    told = [
        (one.kind, one.reason, one.data) for one in house.ledger.events() if one.kind.startswith("reload")
    ]
    assert told == [("reloaded", None, {"changed": ["a.b"]}), ("reload_failed", "typo", {"path": "/e"})]
    assert len(woken) == 2
    assert not reloads.hear()


def test_one_that_could_not_be_written_is_kept(house, monkeypatch):
    """The next look writes it, once."""
    reloads = Reloads(Source({"changed": []}), house.ledger, house.changes)
    reloads.hear()
    with monkeypatch.context() as broken:
        broken.setattr(house.ledger, "write", _refuses)
        try:
            reloads.act()
        except LedgerUnavailable:
            pass
        else:
            raise AssertionError("it was not tried")
    reloads.act()
    reloads.act()
    assert [one.kind for one in house.ledger.events()].count("reloaded") == 1


def _refuses(**_more):
    raise LedgerUnavailable("busy")
