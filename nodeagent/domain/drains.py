"""How long a drain lasts: by boot time while the node runs, and over a reboot by the wall clock.

The wall clock of a node may be wrong, above all right after its start. So the end that is kept in its time is
put right at every look as long as the node runs; and after a reboot no drain has more time left than it was
given in all.
"""

from __future__ import annotations

from dataclasses import replace

from nodeagent.domain.clock import SECOND_NS, Clock
from nodeagent.domain.records import Drain

NODE = "node"  # in place of a device's key, of which none is without a "/": every device, also one to come
STEPPED_SECONDS = 5.0  # by which the wall clock has to be off before its end is written anew
UP = "its time is up"


def over(drain: Drain, clock: Clock) -> str | None:
    """Why *drain* has ended, or None."""
    if drain.until_ns is None:
        return None
    if drain.boot_id == clock.boot_id:
        return UP if clock.boot_ns() >= drain.until_ns else None
    if drain.until_at is None:
        return "the node was rebooted, and with it ended the clock that its time counts by"
    return f"{UP}, and the node was rebooted meanwhile" if clock.wall() >= drain.until_at else None


def carried(drain: Drain, clock: Clock) -> Drain | None:
    """*drain* with its end told by the clocks as they are now; None where it says that already."""
    if drain.until_ns is None:
        return None if drain.boot_id == clock.boot_id else replace(drain, boot_id=clock.boot_id)
    now, wall = clock.boot_ns(), clock.wall()
    if drain.boot_id == clock.boot_id:
        until_at = wall + (drain.until_ns - now) / SECOND_NS
        same = drain.until_at is not None and abs(until_at - drain.until_at) < STEPPED_SECONDS
        return None if same else replace(drain, until_at=until_at)
    if drain.until_at is None:
        return None
    left = min(drain.until_at - wall, max(0.0, drain.until_at - drain.at))
    return replace(drain, boot_id=clock.boot_id, until_ns=now + int(left * SECOND_NS), until_at=wall + left)
