"""Files and directories that are called by the id of the lease that they are of."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LEASE = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


def leases_of(names: Iterable[str]) -> frozenset[int]:
    """The ids among *names*; what is called otherwise is nobody's."""
    return frozenset(int(name) for name in names if _LEASE.fullmatch(name))
