"""Whose devices are on this node: what the site says, or what gres.conf names."""

from __future__ import annotations

import threading

import structlog

from nodeagent.adapters.slurm_conf import SlurmConf
from nodeagent.domain.device import DeviceOwner, Inventory
from nodeagent.domain.errors import AgentError
from nodeagent.domain.ownership import all_of, given_to

log = structlog.get_logger()

AUTO = "auto"


class Ownership:
    """Marks devices with their owner. *setting* is `devices.owner`; auto asks *conf* each time.

    Where Slurm's files are there and cannot be read, every device counts as Slurm's: what may be promised to
    a job is granted to nobody else.
    """

    def __init__(self, conf: SlurmConf, setting: str) -> None:
        self._conf = conf
        self._setting = setting
        self._lock = threading.Lock()
        self._last: tuple[object, Inventory, Inventory] | None = None  # files and scan, and what came of them
        self._told: str | None = None

    def of(self, inventory: Inventory) -> Inventory:
        """*inventory* with its owners. Never raises: what is wrong is in the devices' reasons."""
        if self._setting != AUTO:
            numbered = self._numbered(inventory)
            return all_of(numbered, DeviceOwner(self._setting), f'devices.owner is "{self._setting}"')
        try:
            return self._named(inventory)
        except AgentError as fault:
            self._tell(str(fault))
            return all_of(inventory, DeviceOwner.SLURM, f"it may be, for its files cannot be read: {fault}")

    def _numbered(self, inventory: Inventory) -> Inventory:
        """With Slurm's numbers, where its files can be read: whose the devices are is not theirs to say."""
        try:
            return self._named(inventory)
        except AgentError:
            return inventory

    def _named(self, inventory: Inventory) -> Inventory:
        files = self._conf.files()
        if files is None:
            return inventory
        with self._lock:
            last = self._last
        if last is not None and last[0] is files and last[1] is inventory:
            return last[2]
        gres = self._conf.gres(inventory)
        owned = inventory if gres is None else given_to(inventory, gres, str(files.source))
        with self._lock:
            self._last = (files, inventory, owned)
        return owned

    def _tell(self, why: str) -> None:
        with self._lock:
            told, self._told = self._told, why
        if told != why:
            log.warning("every device counts as Slurm's", why=why)
