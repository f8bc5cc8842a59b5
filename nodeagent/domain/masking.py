"""Takes users out of what an administrator sends away with a ticket, and keeps them apart: user-1, user-2.

Root, and what is no user's, stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MASKED = "masked"
_UIDS = frozenset({"uid", "uids", "gid", "charged_uid"})
# What users chose, or what names their processes and containers.
_TEXTS = frozenset({"holder_id", "request_id", "name", "comm", "command", "container", "containers", "words"})
_SLICE = re.compile(r"\buser([-@])([0-9]+)")
_UID = re.compile(r"(?i)\b(uid[ =:]+)([0-9]+)")
# A program's name has up to 15 characters, of any kind, and stands first in the kernel's lines of its end.
_PROCESS = re.compile(r"\b([Pp]rocess|[Tt]hread|comm:?|Comm:?) .{1,15}? (pid|tid|PID)\b")
_ENDED = re.compile(r"(?:(?<=\] )|^)(traps: )?.{1,15}(?=\[[0-9]+\](?::| trap| general))")


class Mask:
    """*off*: everything stays. One user has the same name in every part of a report."""

    def __init__(self, *, off: bool = False) -> None:
        self._off = off
        self._names: dict[int, str] = {}

    def user(self, uid: int | None) -> int | str | None:
        """The uid where it is root's or the agent's own, else a name for it."""
        if self._off or not uid:
            return uid
        return self._names.setdefault(uid, f"user-{len(self._names) + 1}")

    def text(self, text: str) -> str:
        """*text* without uids of users, nor names of their programs as the kernel's log tells them."""
        if self._off:
            return text
        text = _SLICE.sub(lambda found: f"user{found[1]}{self.user(int(found[2]))}", text)
        text = _UID.sub(lambda found: f"{found[1]}{self.user(int(found[2]))}", text)
        text = _ENDED.sub(rf"\1{MASKED}", text)
        return _PROCESS.sub(rf"\1 {MASKED} \2", text)

    def value(self, value: Any, key: str = "") -> Any:
        """A JSON value, member by member."""
        if self._off or value is None or isinstance(value, bool):
            return value
        if key in _TEXTS:
            return MASKED
        if isinstance(value, Mapping):
            return {self.text(str(name)): self.value(one, str(name)) for name, one in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [self.value(one, key) for one in value]
        if key in _UIDS and isinstance(value, int):
            return self.user(value)
        return self.text(value) if isinstance(value, str) else value
