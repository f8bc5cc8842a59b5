"""Whose a subordinate uid is: rootless containers get no further share for each uid that they map."""

from __future__ import annotations

from pathlib import Path


class Subuids:
    """``/etc/subuid`` as read at start; owners by number or by their line in ``/etc/passwd``.

    Only files are read: no name service may stand in the way of a request.
    """

    def __init__(self, subuid: Path = Path("/etc/subuid"), passwd: Path = Path("/etc/passwd")) -> None:
        uids = {fields[0]: int(fields[2]) for fields in _lines(passwd, 7) if fields[2].isdigit()}
        self._ranges = [
            (int(first), int(count), int(owner) if owner.isdigit() else uids.get(owner, int(first)))
            for owner, first, count in _lines(subuid, 3)
            if first.isdigit() and count.isdigit()
        ]

    def owner(self, uid: int) -> int:
        """Who owns *uid*: itself, unless it lies in someone's subordinate range."""
        for first, count, owner in self._ranges:
            if first <= uid < first + count:
                return owner
        return uid


def _lines(path: Path, fields: int) -> list[list[str]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    split = (line.split(":") for line in text.splitlines() if not line.startswith("#"))
    return [parts for parts in split if len(parts) == fields]
