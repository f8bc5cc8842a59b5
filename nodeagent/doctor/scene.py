"""What the doctor looks at: a node's files below a root, its settings, and whoever can be asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from nodeagent import config as settings
from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.adapters.clock import SystemClock
from nodeagent.adapters.discovery import discover
from nodeagent.adapters.sysfs import SysTree, Unread
from nodeagent.domain.device import Inventory
from nodeagent.domain.slurm_check import Finding as SlurmFinding
from nodeagent.ledger.reader import LedgerReader
from nodeagent.wiring import ledger_path, stem

Ask = Callable[[str], Any]  # GET of a path of the running agent; raises where it does not answer


@dataclass(frozen=True)
class Scene:
    """*root* is ``/`` on a node. *ask* and *slurm* are the command line's; None: nobody to ask.

    Nothing here opens /dev/kfd or a render node, nor wakes a card.
    """

    config: settings.Config
    root: Path = Path("/")
    settings_path: Path = settings.DEFAULT_PATH
    complaints: Sequence[str] = ()
    ask: Ask | None = None
    health: tuple[str, int] = ("agent: not answering", 2)
    slurm: Callable[[], Sequence[SlurmFinding]] | None = None
    events: Callable[[], str | None] = lambda: None  # why the kernel's events cannot be heard
    root_user: bool = field(default_factory=lambda: os.geteuid() == 0)

    @cached_property
    def tree(self) -> SysTree:
        return SysTree(self.root)

    @cached_property
    def inventory(self) -> Inventory:
        return self.scan()

    def scan(self) -> Inventory:
        """Look at the devices once more."""
        return discover(self.tree, include_apus=self.config.devices.include_apus)

    @property
    def real(self) -> bool:
        """Whether this is the node that runs us, and not a copy of a tree."""
        return self.root == Path("/")

    def at(self, path: str) -> Path:
        """*path*, absolute on the node, below the root."""
        return self.root / path.lstrip("/")

    def text(self, path: str) -> str | None:
        """What a file of the node says; None where it says nothing."""
        text = self.tree.text(path)
        return None if isinstance(text, Unread) else text

    def number(self, path: str) -> int | None:
        number = self.tree.number(path)
        return None if isinstance(number, Unread) else number

    def names(self, path: str) -> tuple[str, ...]:
        names = self.tree.names(path)
        return () if isinstance(names, Unread) else names

    @cached_property
    def node(self) -> Mapping[str, Any] | None:
        """The agent's own words about the node; None where it does not answer."""
        if self.ask is None:
            return None
        try:
            told = self.ask("/v1/node")
        except Exception:  # whatever is wrong with it is the check `agent`'s to tell
            return None
        return told if isinstance(told, dict) else None

    @cached_property
    def mount(self) -> Path | None:
        """Where cgroup2 is mounted."""
        try:
            return find_mount(self.at("/proc/self/mountinfo"))
        except OSError:
            return None

    @property
    def stem(self) -> str:
        return stem(self.config.state.directory)

    @cached_property
    def cgroups(self) -> CgroupTree | None:
        """The agent's subtree, looked at and never made."""
        mount = self.mount
        return CgroupTree(mount, f"{self.stem}.slice", proc=self.at("/proc")) if mount else None

    @cached_property
    def clock(self) -> SystemClock:
        return SystemClock()

    @property
    def ledger_file(self) -> Path:
        return ledger_path(None, self.config.state.directory)

    @cached_property
    def ledger(self) -> LedgerReader | None:
        """The ledger, to be read; None where there is none, or this user may not."""
        try:
            with self.ledger_file.open("rb"):
                return LedgerReader(self.ledger_file, self.clock)
        except OSError:
            return None
