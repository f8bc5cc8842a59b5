"""Tickets: what tells the one container that a lease was taken for from all that copy its labels.

Nobody guesses one (threat 18). It is made anew from a key whenever the same request asks again, so that the
ledger has no more of it than its digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain.docker_ticket import digest
from nodeagent.domain.errors import OutsideFault

_KEY_BYTES = 32
_DIGITS = 32  # 128 bits


class Tickets:
    """The tickets of one agent. Its key lies at *path*, which is root's alone to read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._key: bytes | None = None

    def of(self, lease: int, guest: int | None = None) -> str:
        """The ticket of *lease*, or of a *guest* in it, always the same.

        Raises OutsideFault where the key cannot be kept.
        """
        whose = f"ticket {lease:d}" if guest is None else f"ticket {lease:d} guest {guest:d}"
        return hmac.digest(self._kept(), whose.encode(), hashlib.sha256).hex()[:_DIGITS]

    def digest(self, lease: int) -> str:
        return digest(self.of(lease))

    def _kept(self) -> bytes:
        if self._key is None:
            try:
                with contextlib.suppress(FileExistsError):
                    self._make()
                key = self._path.read_bytes()
            except OSError as fault:
                raise outside_fault(self._path, fault) from fault
            if len(key) != _KEY_BYTES:  # of an empty one everybody knows the tickets
                raise OutsideFault(self._path, f"holds {len(key)} bytes and no key: remove it")
            self._key = key
        return self._key

    def _make(self) -> None:
        """Under another name first: a key that was cut short by a death would be easy to guess."""
        fresh = self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            os.link(fresh, self._path)
        finally:
            fresh.unlink(missing_ok=True)
