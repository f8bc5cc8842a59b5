"""What tells of a reset that nobody heard of: the kernel's dumps, for as long as they stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nodeagent.ledger.boot_file import BootFile


class Dumps:
    """Tells new dumps from those seen before. *read* gives those there are: PCI addresses by name."""

    def __init__(self, read: Callable[[], Mapping[str, str]], kept: BootFile[str]) -> None:
        self._read = read
        self._kept = kept
        self._seen: dict[str, str] | None = None

    def unseen(self) -> dict[str, str]:
        """Those that came since the last `see`, also of another process of this boot."""
        if self._seen is None:
            self._seen = self._kept.read()
        return {name: pci for name, pci in self._read().items() if name not in self._seen}

    def see(self) -> None:
        """From now on those there are tell nothing new."""
        there = dict(self._read())
        if there != self._seen:
            self._seen = there
            self._kept.keep(there)
