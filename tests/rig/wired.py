"""The whole agent, wired as it is served, in the test's own process and on the rig's kernel."""

from __future__ import annotations

import os
import subprocess
import textwrap
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nodeagent import config as settings
from nodeagent import wiring
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.domain.guarantee import Requirement
from nodeagent.domain.lease import AnchorKind, HolderKind, Lease
from nodeagent.domain.request import Request, SliceRequest
from nodeagent.service.grant import Outcome
from nodeagent.service.orders import AnchorOrder, Caller, Granted, Order
from tests.rig import machine

CGROUPS = find_mount() or Path("/sys/fs/cgroup")
CALLERS = CGROUPS / "user.slice/rig-callers"
GIB = 1 << 30
NOTHING = Requirement()
CLOSED = "dmem.max holds each lease, and all else is closed"
CLOSED_SECONDS = 10 * float(os.environ.get("NODEAGENT_PATIENCE", "1"))
# Allocates on fakegpu as `nodeagent.adapters.kfd_probe` does on a KFD.
PROBE = """\
    #!/bin/sh
    exec 3<>"$1"
    printf 'alloc %s' "$3" >&3 || exit 1
    echo held
    read -r _
"""


class Wired:
    """An agent on fakegpu's machine. Its callers sit in a user session, so that its leases do not nest."""

    def __init__(
        self,
        directory: Path,
        *,
        probe: str = PROBE,
        watch: settings.Watch | None = None,
        release: settings.Release | None = None,
        slurm: settings.Slurm | None = None,
        floor: str = "advisory",
        **closure: Any,
    ) -> None:
        self.state = directory / "state"
        self.state.mkdir(mode=0o700, exist_ok=True)
        program = directory / "probe"
        program.write_text(textwrap.dedent(probe))
        program.chmod(0o755)
        config = settings.Config(
            state=settings.State(directory=self.state),
            closure=settings.Closure(probe=str(program), **closure),
            hook=settings.Hook(enabled=False),
            watch=watch or settings.Watch(),
            release=release or settings.Release(),
            slurm=slurm or settings.Slurm(spool=directory / "spool"),
            guarantee=settings.Guarantee(memory=floor),
        )
        CALLERS.mkdir(exist_ok=True)
        self._caller = subprocess.Popen(["sleep", "infinity"])
        (CALLERS / "cgroup.procs").write_text(str(self._caller.pid))
        shown = machine.write(directory / "mi300x-spx.json")
        # Made of files, but its cards are fakegpu's, of which this kernel tells.
        node = replace(wiring.simulated_node(str(shown), self.state), announced=True)
        self._tree = node.root
        machine.show_processes(node.root)
        self.built = wiring.build(config, node)
        self.built.start()

    def tier(self) -> Any:
        return next(tier for tier in self.built.agent.node().tiers if tier.name == "dmem")

    def ask(self, *vram: int, pid: int | None = None, require: Requirement = NOTHING) -> Outcome:
        """Ask for so many bytes on so many devices, for a caller of this or that process."""
        slices = tuple(SliceRequest(cu_percent=25, vram_bytes=size) for size in vram)
        caller = Caller(0, 0, frozenset(), pid or self._caller.pid, None, administrator=True)
        order = Order(
            Request(slices=slices, require=require),
            HolderKind.CLIENT,
            "rig",
            AnchorOrder(AnchorKind.TTL, 900),
            request_id=None,
            digest="",
        )
        return self.built.agent.grant(caller, order)

    def grant(self, *vram: int, pid: int | None = None) -> Lease:
        """A lease of so many bytes on so many devices, for a caller of this or that process."""
        outcome = self.ask(*vram, pid=pid)
        assert isinstance(outcome, Granted), outcome
        return outcome.lease

    def regions(self, lease: Lease) -> Mapping[str, int]:
        """Bytes by region, as its journal has them."""
        told: Any = next(one for one in self.built.ledger.effects(lease.id) if one.kind == "dmem")
        return dict(told.arguments["regions"])

    def events(self, kind: str) -> list[Any]:
        return [event for event in self.built.ledger.events(limit=1000) if event.kind == kind]

    def release(self, lease: Lease) -> Lease:
        return self.built.agent.release(self._root(), lease.id, 30)

    def begin_release(self, lease: int) -> None:
        """Without waiting for its end."""
        self.built.agent.release(self._root(), lease)

    def clear(self, lease: int) -> None:
        """Try the proof of its quarantined slices again."""
        self.built.agent.clear_lease(self._root(), lease)

    @staticmethod
    def _root() -> Caller:
        return Caller(0, 0, frozenset(), os.getpid(), None, administrator=True)

    def stop(self) -> None:
        """Stop the agent; leases and limits stay. Again is harmless."""
        if self._caller.poll() is not None:
            return
        self.built.stop()
        machine.hide_processes(self._tree)
        self._caller.kill()
        self._caller.wait()


def closed(made: Wired) -> None:
    """Wait until every region was tried and closed."""
    deadline = time.monotonic() + CLOSED_SECONDS
    while made.tier().why != CLOSED:
        assert time.monotonic() < deadline, made.tier().why
        time.sleep(0.2)


def open_again(directory: Path) -> None:
    """End the leases that an agent left in *directory*, and take back all that it closed."""
    last = Wired(directory, enabled=False)
    for lease in last.built.ledger.live():
        last.release(lease)
    last.stop()


def path_of(lease: Lease) -> Path:
    assert lease.cgroup is not None
    return CGROUPS / lease.cgroup[1:]


def limit(cgroup: Path, region: str) -> str:
    """What the cgroup's dmem.max says of *region*."""
    table = dict(line.split() for line in (cgroup / "dmem.max").read_text().splitlines())
    return table[region]


def command(*words: str, **options: Any) -> str:
    """Run it to its end; what it said."""
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, **options)
    return (ran.stdout + ran.stderr).strip()
