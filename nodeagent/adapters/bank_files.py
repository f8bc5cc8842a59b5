"""Shrunken copies of KFD's memory banks: a directory for each node of a lease, mounted over the kernel's."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from nodeagent.adapters.hook_space import make_own
from nodeagent.adapters.kfd import node_path
from nodeagent.adapters.lease_names import leases_of
from nodeagent.adapters.replacing import faults_of, replace
from nodeagent.adapters.sysfs import SysTree, Unread
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.memory_banks import Bank, shrunken

ROOT = Path("/run/nodeagent/banks")


class BankFiles:
    """Of the agent instance whose subtree is *stem*.slice, made from *tree*. All raise OutsideFault."""

    def __init__(self, stem: str, tree: SysTree, *, root: Path = ROOT) -> None:
        self._root = root
        self._directory = root / stem
        self._tree = tree

    def path(self, lease: int, node: int) -> Path:
        """What is mounted over the banks of topology node *node*."""
        return self._directory / f"{lease:d}" / f"{node:d}"

    def prepare(self, lease: int, shown: Mapping[int, int]) -> None:
        """Make the copies: *shown* has the bytes for each topology node. Again is harmless.

        One that is as it shall be is left alone: a container may have it mounted.
        """
        with faults_of(self._directory):
            for directory in (self._root.parent, self._root, self._directory):
                make_own(directory)
            for path, content in self._wanted(lease, shown):
                if not path.exists() or path.read_bytes() != content:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    replace(path, content, 0o444)
                    for directory in path.parents[:2]:
                        directory.chmod(0o755)  # whatever the umask: a container's users read it

    def verify(self, lease: int, shown: Mapping[int, int]) -> None:
        """Read the copies back."""
        for path, content in self._wanted(lease, shown):
            with faults_of(path):
                if path.read_bytes() != content:
                    raise OutsideFault(path, "reads otherwise than it was written")

    def leases(self) -> frozenset[int]:
        """Those that have copies."""
        with faults_of(self._directory), contextlib.suppress(FileNotFoundError):
            return leases_of(entry.name for entry in self._directory.iterdir())
        return frozenset()

    def remove(self, lease: int) -> None:
        """Take the copies away; gone already is success."""
        with faults_of(self._directory), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._directory / f"{lease:d}")

    def leave(self) -> None:
        """Take the directories away, if no lease of any agent has a copy there."""
        with contextlib.suppress(OSError):
            self._directory.rmdir()
            self._root.rmdir()

    def _wanted(self, lease: int, shown: Mapping[int, int]) -> Iterator[tuple[Path, bytes]]:
        for node, shown_bytes in shown.items():
            where = f"{node_path(node)}/mem_banks"
            banks = {bank: self._bank(f"{where}/{bank}/properties") for bank in self._tree.numbered(where)}
            for bank, values in shrunken(banks, shown_bytes).items():
                text = "".join(f"{key} {value}\n" for key, value in values.items())
                yield self.path(lease, node) / f"{bank}/properties", text.encode("ascii")

    def _bank(self, path: str) -> Bank:
        found = self._tree.properties(path)
        if isinstance(found, Unread):
            raise OutsideFault(f"/{path}", found.detail)
        return found.values
