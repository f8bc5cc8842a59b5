"""Whether leases are enforced: by kind of holder, as the site says, and for all at once while bypassed.

What is observed is worked out, told and counted as if it were enforced, and nothing is refused, masked,
limited, closed or killed for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.errors import InvalidField
from nodeagent.domain.lease import HolderKind

LONGEST_REASON = 200
LONGEST_SECONDS = 7 * 86_400  # a bypass that nobody remembers is the end of all limits
_FORM = re.compile(
    r"boot_id=(?P<boot_id>[0-9a-f-]{36})\nuntil=(?P<until>[0-9]{1,10})\nuid=(?P<uid>[0-9]{1,10})\n"
    r"at=(?P<at>[0-9]{1,12})\nreason=(?P<reason>[ -~]{1,200})\n",
    re.ASCII,
)


class Mode(StrEnum):
    ENFORCE = "enforce"
    OBSERVE = "observe"


@dataclass(frozen=True, slots=True)
class Modes:
    """The site's choice; a kind that is not in it is enforced."""

    by_kind: Mapping[HolderKind, Mode] = field(default_factory=dict)

    def of(self, kind: HolderKind) -> Mode:
        return self.by_kind.get(kind, Mode.ENFORCE)

    @property
    def observed(self) -> tuple[HolderKind, ...]:
        return tuple(kind for kind in HolderKind if self.of(kind) is Mode.OBSERVE)


@dataclass(frozen=True, slots=True)
class Bypass:
    """An administrator's word that nothing is enforced for a time; `text_of` is how it is written down."""

    boot_id: str
    until_s: int  # boot time
    uid: int
    at: int  # wall clock, for display only
    reason: str

    def holds(self, clock: Clock) -> bool:
        """Whether it is on now: no reboot outlives it, and no clock jump lengthens it."""
        return self.boot_id == clock.boot_id and clock.boot_ns() < self.until_s * SECOND_NS

    def left_seconds(self, clock: Clock) -> int:
        return max(0, self.until_s - clock.boot_ns() // SECOND_NS)


def bypass_for(seconds: int, *, uid: int, reason: str, clock: Clock) -> Bypass:
    """A bypass from now on. Raises InvalidField for an end or a reason that can never be right."""
    if not 0 < seconds <= LONGEST_SECONDS:
        raise InvalidField("until", f"must lie between 1 second and {LONGEST_SECONDS // 86_400} days")
    if not 0 < len(reason) <= LONGEST_REASON or not reason.isascii() or not reason.isprintable():
        raise InvalidField("reason", f"must be one line of ASCII text, up to {LONGEST_REASON} characters")
    until_s = clock.boot_ns() // SECOND_NS + seconds
    return Bypass(clock.boot_id, until_s, uid, int(clock.wall()), reason)


def text_of(bypass: Bypass) -> str:
    """A line a field, the first two being what Slurm's scripts read: client/slurm/agent.sh."""
    return (
        f"boot_id={bypass.boot_id}\nuntil={bypass.until_s}\nuid={bypass.uid}\n"
        f"at={bypass.at}\nreason={bypass.reason}\n"
    )


def bypass_of(text: str) -> Bypass:
    """What `text_of` gave. Raises InvalidField for anything else: half a bypass is none."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise InvalidField("bypass", "is not as `nodeagent bypass on` writes it")
    return Bypass(found["boot_id"], int(found["until"]), int(found["uid"]), int(found["at"]), found["reason"])
