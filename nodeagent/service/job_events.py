"""Wakes the reconciler when Slurm makes a job's cgroup anew: its limits follow at once, not a look later."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import structlog

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.inotify import Inotify
from nodeagent.domain.errors import OutsideFault
from nodeagent.service.job_cgroups import JobCgroups

log = structlog.get_logger()


class JobEvents:
    """Hears of directories in Slurm's scopes. What is missed is made up for at the reconciler's looks."""

    def __init__(self, source: Inotify, tree: CgroupTree, cgroups: JobCgroups) -> None:
        self._source = source
        self._tree = tree
        self._cgroups = cgroups
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._lost = False

    def open(self) -> int | None:
        """Begin to listen: the descriptor to poll, or None where nothing is to be heard, which is logged."""
        try:
            return self._source.open()
        except OutsideFault as fault:
            log.warning("no news of jobs' cgroups: those made anew are found by looking", why=str(fault))
            return None

    def close(self) -> None:
        self._source.close()

    def hear(self) -> bool | None:
        """Take what has come; whether there is something to do. None: nothing will ever come again."""
        try:
            made = self._source.read()
        except OutsideFault as fault:
            log.error("news of jobs' cgroups ended: those made anew are found by looking", why=str(fault))
            return None
        with self._lock:
            self._names |= made.names
            self._lost = self._lost or made.lost
        return bool(made.names) or made.lost

    def act(self) -> None:
        """Have the limits of leases on the jobs' cgroups that were made."""
        with self._lock:
            names, lost = frozenset(self._names), self._lost
            self._names, self._lost = set(), False
        if names or lost:
            self._cgroups.look(None if lost else names)

    def look(self) -> None:
        """Have them on every job's, and listen in every scope that has one."""
        self._cgroups.look()
        self._listen(self._cgroups.scopes())

    def _listen(self, scopes: Iterable[str]) -> None:
        for path in scopes:
            ref = self._tree.resolve(path)
            try:
                if ref is not None:
                    with self._tree.open(ref) as scope:
                        self._source.watch(scope.fileno(), path)
            except FileNotFoundError:
                continue  # Slurm makes it anew with its next job
