"""The cgroups of one agent instance: where a lease's goes, how it is made, found again and opened."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from nodeagent.adapters.cgroup_directory import DIRECTORY, CgroupRef, OpenCgroup, open_beneath, parts_of
from nodeagent.adapters.cgroup_search import all_paths
from nodeagent.adapters.cgroup_sweep import child_names
from nodeagent.adapters.processes import PROC
from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain.errors import OutsideFault

__all__ = ["CgroupRef", "CgroupTree", "OpenCgroup", "nest_below"]

# systemd reads "-" in a slice's name as a level, so a hash may hold none.
_INSTANCE = re.compile(r"gpulease(_[0-9A-Za-z]+)?\.slice")


def nest_below(path: str | None) -> str | None:
    """The cgroup below which the lease of a caller in *path* must lie; None: the instance's own subtree.

    The root and user sessions confine nobody to a job. Everything else (a job, container, service, another
    lease) has limits and a device filter that its processes must not leave (threat 9).
    """
    if path is None or path == "/" or path == "/user.slice" or path.startswith("/user.slice/"):
        return None
    return path


class CgroupTree:
    """The subtree *instance* (``gpulease.slice``, ``gpulease_<hash>.slice``) of the cgroup2 mount *mount*.

    *kernel_kills* and *kernel_resolves* False act as on kernels without ``cgroup.kill`` and openat2.
    """

    def __init__(
        self,
        mount: Path,
        instance: str,
        *,
        proc: Path = PROC,
        kernel_kills: bool = True,
        kernel_resolves: bool = True,
    ) -> None:
        if not _INSTANCE.fullmatch(instance):
            raise OutsideFault(instance, "an instance is named gpulease.slice or gpulease_<hash>.slice")
        self.mount = mount
        self.instance = f"/{instance}"
        self._stem = instance.removesuffix(".slice")
        self._proc = proc
        self._kernel_kills = kernel_kills
        self._kernel_resolves = kernel_resolves

    @property
    def names(self) -> str:
        """A glob that the names of all leases' cgroups match."""
        return f"{self._stem}-*.slice"

    def writable(self) -> str | None:
        """Why no cgroups can be made here, or None. Makes the instance's directory: less proves nothing."""
        if not (self.mount / "cgroup.procs").exists():
            return f"{self.mount}: no cgroup2 mount"
        try:
            self._make("/", self.instance[1:]).close()
        except (OutsideFault, FileNotFoundError) as fault:
            return str(fault)
        return None

    def create(self, lease_id: int, parent: str | None = None, name: str | None = None) -> CgroupRef:
        """Make the cgroup of *lease_id*, in the instance's subtree or below *parent*; again is harmless.

        *name* is what it is called there where that is for another to say, as Slurm does of its jobs'.

        Raises:
            OutsideFault: the kernel refuses, or the name is taken by a cgroup that somebody else made.
            FileNotFoundError: *parent* is gone.
        """
        if parent is None:
            self._make("/", self.instance[1:]).close()
        with self._make(parent or self.instance, name or self.name(lease_id)) as made:
            return made.ref

    def scratch(self, name: str) -> CgroupRef:
        """Make the cgroup *name* in the instance's subtree, for the agent's own trials; again is harmless."""
        self._make("/", self.instance[1:]).close()
        with self._make(self.instance, name) as made:
            return made.ref

    def find(self, lease_id: int, parent: str | None = None, name: str | None = None) -> CgroupRef | None:
        """The cgroup that `create` made with these arguments, if it exists and is the agent's own."""
        try:
            with self._open(_join(parent or self.instance, name or self.name(lease_id))) as found:
                return found.ref if found.owner == os.geteuid() else None
        except FileNotFoundError:
            return None

    def resolve(self, path: str) -> CgroupRef | None:
        """The existing cgroup at *path*, whoever made it; None where there is none."""
        try:
            with self._open(path) as found:
                return found.ref
        except FileNotFoundError:
            return None

    def open(self, ref: CgroupRef) -> OpenCgroup:
        """Open the recorded cgroup itself; everything done with it reaches that cgroup or none.

        Raises:
            FileNotFoundError: it is gone; another one made under its name since does not count.
            OutsideFault: a symbolic link stands in the way, or the kernel says no.
        """
        found = self._open(ref.path)
        if found.inode != ref.inode:
            found.close()
            raise FileNotFoundError(
                errno.ENOENT, "the recorded cgroup is gone; another has its name", ref.path
            )
        return found

    def exists(self, ref: CgroupRef | None) -> bool:
        """Whether the recorded cgroup is there. This and the next two raise OutsideFault, as `open` does."""
        return self._is(ref, lambda cgroup: True)

    def populated(self, ref: CgroupRef | None) -> bool:
        """Whether somebody is in the recorded cgroup or below it; nobody is in one that is gone."""
        return self._is(ref, OpenCgroup.populated)

    def frozen(self, ref: CgroupRef | None) -> bool:
        """Whether the recorded cgroup is frozen by itself."""
        return self._is(ref, OpenCgroup.frozen)

    def _is(self, ref: CgroupRef | None, question: Callable[[OpenCgroup], bool]) -> bool:
        if ref is None:
            return False
        try:
            with self.open(ref) as cgroup:
                return question(cgroup)
        except FileNotFoundError:
            return False

    def remove(self, ref: CgroupRef) -> None:
        """Remove the recorded cgroup and its empty children; gone already is success.

        Raises:
            OutsideFault: a process still lives in it or below it.
        """
        with contextlib.suppress(FileNotFoundError), self.open(ref) as cgroup:
            cgroup.remove()

    def leave(self) -> None:
        """Remove the instance's own directory and its `scratch` cgroups, if nothing is left in them."""
        directory = self.mount / self.instance[1:]
        with contextlib.suppress(OSError):
            for path in (*(one for one in directory.iterdir() if one.is_dir()), directory):
                if self.lease_of(path.name) is None:  # a lease's cgroup is its journal's to remove
                    path.rmdir()

    def existing(self) -> Mapping[int, CgroupRef]:
        """The leases' cgroups directly in the instance's subtree, by lease id.

        Only what the agent itself made counts: a look-alike elsewhere, or of another owner, is no lease's.
        """
        try:
            directory = self._open(self.instance)
        except FileNotFoundError:
            return {}
        with directory:
            if directory.owner != os.geteuid():
                return {}
            ids = [self.lease_of(name) for name in child_names(directory.fileno())]
        refs = {lease: self.find(lease) for lease in ids if lease is not None}
        return {lease: ref for lease, ref in refs.items() if ref is not None}

    def nested(self) -> Mapping[int, CgroupRef]:
        """The leases' cgroups that lie anywhere else: below a job's, a container's, or another lease's.

        Looks through the whole mount: for a start, not for every look. What counts is as in `existing`.
        """
        refs: dict[int, CgroupRef] = {}
        for path in all_paths(self.mount):
            parent, _, name = path.rpartition("/")
            lease = self.lease_of(name)
            if lease is not None and parent != self.instance and (ref := self.find(lease, parent or "/")):
                refs[lease] = ref
        return refs

    def lease_ids(self) -> frozenset[int]:
        """The ids in existing cgroup names: no new lease may have one of these, or a lower one."""
        return frozenset(self.existing())

    def cgroup_of(self, pid: int) -> str | None:
        """The cgroup2 path of *pid*; None where it has none, is gone, or lies outside what the agent sees."""
        try:
            text = (self._proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="surrogateescape")
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError as fault:
            raise outside_fault(self._proc / str(pid) / "cgroup", fault) from fault
        for line in text.splitlines():
            if line.startswith("0::"):
                return self._visible(line.removeprefix("0::"))
        return None

    def enable(self, controller: str, path: str) -> None:
        """Give the cgroup *path* the files of *controller*: from the root down to the parent of *path*.

        Raises:
            OutsideFault: an ancestor lacks it or holds processes itself; those above keep what was enabled.
        """
        parts = parts_of(path)
        for depth in range(len(parts)):
            self._enable_at("/" + "/".join(parts[:depth]), controller)

    def _enable_at(self, path: str, controller: str) -> None:
        with self._open(path) as cgroup:
            if controller in (cgroup.read("cgroup.subtree_control") or "").split():
                return
            try:
                cgroup.write("cgroup.subtree_control", f"+{controller}")
            except OSError as fault:
                raise outside_fault(
                    f"{self.mount}{_join(path, 'cgroup.subtree_control')}",
                    fault,
                    ENOENT=f"+{controller}: not offered here: the kernel or the parent lacks it",
                    EINVAL=f"+{controller}: the kernel does not know this controller",
                    EBUSY=f"+{controller}: processes live in this cgroup itself: children cannot have it",
                    EOPNOTSUPP=f"+{controller}: not in a threaded cgroup",
                ) from fault

    def _visible(self, path: str) -> str | None:
        """*path* if it is a cgroup below the mount: not ``/../x`` of another namespace, not a deleted one."""
        try:
            return None if self.resolve(path) is None else path
        except OutsideFault:
            return None

    def _make(self, parent: str, name: str) -> OpenCgroup:
        path = _join(parent, name)
        with self._open(parent) as directory:
            try:
                os.mkdir(name, mode=0o755, dir_fd=directory.fileno())
            except FileExistsError:
                pass
            except FileNotFoundError:
                raise
            except OSError as fault:
                raise outside_fault(f"{self.mount}{path}", fault) from fault
            try:
                descriptor = os.open(name, DIRECTORY, dir_fd=directory.fileno())
            except OSError as fault:
                raise outside_fault(f"{self.mount}{path}", fault) from fault
        made = OpenCgroup(descriptor, path, kernel_kills=self._kernel_kills)
        if made.owner != os.geteuid():
            made.close()
            raise OutsideFault(f"{self.mount}{path}", f"made by uid {made.owner}, not by the agent")
        return made

    def _open(self, path: str) -> OpenCgroup:
        descriptor = open_beneath(self.mount, path, kernel_resolves=self._kernel_resolves)
        return OpenCgroup(descriptor, path, kernel_kills=self._kernel_kills)

    def name(self, lease_id: int) -> str:
        """What the cgroup of *lease_id* is called, wherever it lies: a slice, as systemd names them."""
        # The instance's own stem, also when nested: two instances must never meet in one job's cgroup.
        return f"{self._stem}-{lease_id:d}.slice"

    def lease_of(self, name: str) -> int | None:
        """The lease id in *name*, if it is such a one."""
        match = re.fullmatch(rf"{self._stem}-([1-9][0-9]{{0,17}})\.slice", name, re.ASCII)
        return int(match[1]) if match else None


def _join(parent: str, name: str) -> str:
    return f"/{name}" if parent == "/" else f"{parent}/{name}"
