"""For whom devices are reserved: users, groups and kinds of holders, as a site names them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from nodeagent.domain.lease import HolderKind

Numbers = Callable[[str], int | None]
WORDS = ("user", "group", "kind")


def party_of(text: str) -> tuple[str, str]:
    """The word and the name of ``user:alice``, ``group:ml`` or ``kind:slurm``.

    Raises:
        ValueError: it is none of these.
    """
    word, _, name = text.partition(":")
    if word not in WORDS or not name:
        raise ValueError(f"{text!r}: write user:NAME, group:NAME or kind:{'|'.join(HolderKind)}")
    if word == "kind" and name not in tuple(HolderKind):
        raise ValueError(f"{name!r} is no kind of holder: {', '.join(HolderKind)}")
    return word, name


@dataclass(frozen=True, slots=True)
class Reserved:
    """Who alone may lease a device: *parties* in the site's words, and their numbers. Without any, nobody."""

    parties: tuple[str, ...] = ()
    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()
    kinds: frozenset[HolderKind] = frozenset()

    @classmethod
    def of(cls, parties: Sequence[str], uid_of: Numbers, gid_of: Numbers) -> Reserved:
        """A reservation for *parties*; a name that has no number is nobody's. Raises what `party_of` does."""
        named = [party_of(party) for party in parties]

        def numbers(word: str, number_of: Numbers) -> frozenset[int]:
            found = {number_of(name) for its, name in named if its == word}
            return frozenset(number for number in found if number is not None)

        kinds = frozenset(HolderKind(name) for word, name in named if word == "kind")
        return cls(tuple(parties), numbers("user", uid_of), numbers("group", gid_of), kinds)

    def admits(self, kind: HolderKind, uid: int | None, groups: Collection[int]) -> bool:
        """Whether a holder of *kind*, *uid*'s, is one of them; *groups* are those that the user is in."""
        return kind in self.kinds or uid in self.uids or not self.gids.isdisjoint(groups)

    @property
    def said(self) -> str:
        return ", ".join(self.parties) or "nobody"
