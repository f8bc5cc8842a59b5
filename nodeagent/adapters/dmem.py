"""VRAM limits by the kernel's dmem cgroup controller. The only module that knows its files' format.

Facts from kernel/cgroup/dmem.c, 6.14 to 7.3: one ``<region> <bytes>`` line a region. The portable write is
one region at a time. Up to 7.2 a limit below the usage is dropped without an error: what counts is what is
read back. A region name without a value can crash kernels of 6.14's age: names are checked before a write.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from nodeagent.adapters.cgroup import CgroupRef, CgroupTree, OpenCgroup
from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain.errors import OutsideFault

CONTROLLER = "dmem"
# From here on the counter means, and prints, "max": LONG_MAX / page size.
UNLIMITED_BYTES = 2_251_799_813_685_247

_REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9:./_-]*", re.ASCII)

# (cgroup, file name, text): one write(2). Replaced in tests by kernels that behave otherwise.
Write = Callable[[OpenCgroup, str, str], None]


def kernel_write(cgroup: OpenCgroup, name: str, text: str) -> None:
    """Write without waiting: from 7.3 on a lower limit else evicts the tenant's buffers before it returns."""
    cgroup.write(name, text, flags=os.O_NONBLOCK)


class DmemController:
    """The controller as *tree*'s mount offers it."""

    def __init__(self, tree: CgroupTree, *, write: Write = kernel_write) -> None:
        self._tree = tree
        self._write = write

    def unavailable(self) -> str | None:
        """Why no limits can be set here, or None. A kernel's version says nothing: many are built without."""
        offered = (self._root_file("cgroup.controllers") or "").split()
        if CONTROLLER not in offered:
            return (
                f"{self._tree.mount}/cgroup.controllers does not list dmem: the kernel is built without "
                "CONFIG_CGROUP_DMEM, or this mount is not where its controllers are"
            )
        if not self.capacity():
            return f"{self._tree.mount}/dmem.capacity lists no region: the GPU driver registers none"
        return None

    def capacity(self) -> dict[str, int]:
        """Bytes of each region that a driver registered."""
        lines = _parse(self._root_file("dmem.capacity"))
        return {region: size for region, size in lines.items() if size is not None}

    def enable(self, path: str) -> None:
        """Make the cgroup at *path* have dmem files. Raises OutsideFault naming the ancestor that cannot."""
        self._tree.enable(CONTROLLER, path)

    def divisible(self, path: str) -> bool:
        """Whether children of the cgroup *path* can have dmem files: it holds no process itself."""
        ref = self._tree.resolve(path)
        if ref is None:
            return False
        with self._tree.open(ref) as cgroup:
            return path == "/" or not cgroup.procs()

    def limit(self, ref: CgroupRef, region: str, limit_bytes: int) -> None:
        """Cap and protect *region* of the cgroup *ref* at *limit_bytes*, and read both back.

        Raises:
            OutsideFault: no such region or file, or the kernel took the value and did not apply it.
            FileNotFoundError: the cgroup is gone.
        """
        self._check(region, limit_bytes)
        with self._tree.open(ref) as cgroup:
            for name in ("dmem.max", "dmem.min"):
                self._set(cgroup, name, region, limit_bytes)

    def cap(self, ref: CgroupRef, region: str, limit_bytes: int | None) -> None:
        """Cap *region* of the cgroup *ref* without protecting it; None: unlimited. Read back like `limit`."""
        self._check(region, limit_bytes or 0)
        with self._tree.open(ref) as cgroup:
            self._set(cgroup, "dmem.max", region, limit_bytes)

    def lift(self, ref: CgroupRef, region: str) -> None:
        """Take back what `limit` did to *region* of the cgroup *ref*. Raises as that does."""
        with self._tree.open(ref) as cgroup:
            self._set(cgroup, "dmem.min", region, 0)
            self._set(cgroup, "dmem.max", region, None)

    def limits(self, ref: CgroupRef) -> dict[str, int | None]:
        """``dmem.max`` of the cgroup *ref* by region; None: unlimited."""
        return self._table(ref, "dmem.max")

    def current(self, ref: CgroupRef) -> dict[str, int]:
        """Bytes charged to the cgroup *ref* and all below it, by region; empty where it has no dmem files."""
        return {region: used or 0 for region, used in self._table(ref, "dmem.current").items()}

    def _check(self, region: str, limit_bytes: int) -> None:
        if not _REGION.fullmatch(region) or region not in self.capacity():
            raise OutsideFault(
                f"{self._tree.mount}/dmem.capacity",
                f"no region {region!r}: the device was unplugged or renamed",
            )
        if not 0 <= limit_bytes < UNLIMITED_BYTES:
            raise OutsideFault(region, f"{limit_bytes} bytes is no limit that the kernel can hold")

    def _set(self, cgroup: OpenCgroup, name: str, region: str, limit_bytes: int | None) -> None:
        path = f"{self._tree.mount}{cgroup.path}/{name}"
        value = "max" if limit_bytes is None else str(limit_bytes)
        try:
            self._write(cgroup, name, f"{region} {value}\n")
        except OSError as fault:
            raise outside_fault(
                path,
                fault,
                ENOENT="no dmem here: +dmem is missing in the parent's cgroup.subtree_control",
                EINVAL=f"{region}: unknown region; the device was unplugged or renamed",
                ENODEV=f"{region}: its driver is being unloaded",
            ) from fault
        table = _parse(cgroup.read(name))
        held = table.get(region)
        if region not in table or held != limit_bytes:
            raise OutsideFault(
                path,
                f"{region}: {value} was written, {'max' if held is None else held} is in force: "
                "up to Linux 7.2 a limit below what is in use already is dropped without an error",
            )

    def _table(self, ref: CgroupRef, name: str) -> dict[str, int | None]:
        with self._tree.open(ref) as cgroup:
            return _parse(cgroup.read(name))

    def _root_file(self, name: str) -> str | None:
        root = self._tree.resolve("/")
        if root is None:
            return None
        with self._tree.open(root) as cgroup:
            return cgroup.read(name)


def _parse(text: str | None) -> dict[str, int | None]:
    """``<region> <bytes>`` a line; ``max`` is None. Lines of any other shape are left out."""
    table: dict[str, int | None] = {}
    for line in (text or "").splitlines():
        region, _, value = line.rpartition(" ")
        if region and (value == "max" or value.isdecimal()):
            table[region] = None if value == "max" else int(value)
    return table
