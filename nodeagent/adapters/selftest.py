"""Whether this kernel's VRAM limits have an effect on a device: tried in a scratch cgroup by a child.

A file that takes a limit proves nothing. A kernel 6.17 was seen to have all the files, and to charge nothing
of what ROCm allocated: only an allocation that was charged, and one that was refused, are proof.
"""

from __future__ import annotations

import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from nodeagent.adapters.cgroup import CgroupTree, OpenCgroup
from nodeagent.adapters.dmem import DmemController
from nodeagent.domain.errors import OutsideFault

LIMIT_BYTES, FITS_BYTES, OVER_BYTES = 64 << 20, 16 << 20, 128 << 20
KFD_PROBE = (sys.executable, "-I", "-m", "nodeagent.adapters.kfd_probe")
_SECONDS = 5.0  # for a probe to say something: a device that was asleep wakes up first
# Waits to be told that it is in the cgroup: memory is charged to where its process is at that instant.
_WAIT = ("/bin/sh", "-c", 'read -r _ && exec "$@"', "probe")


@dataclass(frozen=True, slots=True)
class _Tried:
    held: bool
    charged: int  # bytes, while it held
    said: str


class SelfTest:
    """Tries one region at a time. *probe* is run as ``PROBE RENDER_NODE GPU_ID BYTES``: see `kfd_probe`."""

    def __init__(self, tree: CgroupTree, dmem: DmemController, probe: Sequence[str] = KFD_PROBE) -> None:
        self._tree = tree
        self._dmem = dmem
        self._probe = tuple(probe)

    def run(self, region: str, render_node: str, gpu_id: int) -> str | None:
        """Why limits of *region* are not known to have an effect; None: they have. Never raises for it."""
        try:
            with self._scratch(region) as scratch:
                return self._tried(scratch, region, (render_node, str(gpu_id)))
        except (OutsideFault, OSError, subprocess.SubprocessError) as fault:
            return f"{region}: {fault}"

    def _tried(self, scratch: OpenCgroup, region: str, device: Sequence[str]) -> str | None:
        fits = self._try(scratch, region, (*device, str(FITS_BYTES)))
        if not fits.held:
            return f"{region}: limits read back, but no allocation could be tried: {fits.said}"
        if fits.charged < FITS_BYTES:
            return (
                f"{region}: of {FITS_BYTES} bytes allocated, {fits.charged} were charged: this kernel or its "
                "driver has the files and not the effect"
            )
        if self._try(scratch, region, (*device, str(OVER_BYTES))).held:
            return f"{region}: {OVER_BYTES} bytes were allocated under a limit of {LIMIT_BYTES}"
        return None

    def _try(self, scratch: OpenCgroup, region: str, arguments: Sequence[str]) -> _Tried:
        with subprocess.Popen(
            [*_WAIT, *self._probe, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/bin:/bin"},
            cwd="/",
        ) as child:
            assert child.stdin and child.stdout
            try:
                scratch.move(child.pid)
                child.stdin.write(b"\n")
                child.stdin.flush()
                said = _line(child.stdout.fileno()) and child.stdout.readline().decode("utf-8", "replace")
                held = said == "held\n"
                charged = self._dmem.current(scratch.ref).get(region, 0) if held else 0
            finally:
                scratch.kill()  # its VRAM goes with it, also where it would not end by itself
        return _Tried(held, charged, (said or f"the probe said nothing in {_SECONDS:.0f} s").strip())

    @contextmanager
    def _scratch(self, region: str) -> Iterator[OpenCgroup]:
        ref = self._tree.scratch("selftest")
        try:
            self._dmem.enable(ref.path)
            self._dmem.limit(ref, region, LIMIT_BYTES)
            with self._tree.open(ref) as scratch:
                yield scratch
                _until_empty(scratch)
        finally:
            self._tree.remove(ref)


def _line(descriptor: int) -> bool:
    """Whether *descriptor* has something to read, or its end, in time."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(_SECONDS))


def _until_empty(cgroup: OpenCgroup) -> None:
    deadline = time.monotonic() + _SECONDS
    while cgroup.populated() and time.monotonic() < deadline:
        time.sleep(0.01)
