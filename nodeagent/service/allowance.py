"""How long one owner's waiting requests may keep devices from others: half of the time, once that is much."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(slots=True)
class _Account:
    left_ns: int
    rests: bool = False


class Allowance:
    """By owner: at most *most_ns* on end, which come back as fast; who has used them up has to get all back.

    Kept in memory alone: after a restart everybody has all of it.
    """

    def __init__(self, most_ns: int) -> None:
        self._most_ns = most_ns
        self._accounts: dict[int, _Account] = {}  # of those who have less than all
        self._at_ns: int | None = None
        self._keeping: frozenset[int] = frozenset()

    def pass_time(self, now_ns: int) -> None:
        """Count what has gone by since the last call against those who have kept something since."""
        passed = 0 if self._at_ns is None else max(0, now_ns - self._at_ns)
        self._at_ns = now_ns
        for owner in self._keeping - self._accounts.keys():
            self._accounts[owner] = _Account(self._most_ns)
        for owner, account in list(self._accounts.items()):
            account.left_ns += -passed if owner in self._keeping else passed
            account.rests = account.rests or account.left_ns <= 0
            account.left_ns = max(0, account.left_ns)
            if account.left_ns >= self._most_ns and owner not in self._keeping:
                del self._accounts[owner]

    def left_ns(self, owner: int) -> int:
        """How long *owner* may keep something from now on."""
        account = self._accounts.get(owner)
        if account is None:
            return self._most_ns
        return 0 if account.rests else account.left_ns

    def keep(self, owners: Collection[int]) -> None:
        """From now on these keep something, and nobody else."""
        self._keeping = frozenset(owners)
