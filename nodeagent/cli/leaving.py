"""`nodeagent leave`: what an agent that goes for good gives back, and what it leaves running."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nodeagent import config as settings
from nodeagent import wiring
from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.adapters.sole import sole


def leave(config_path: Path | None, state_dir: Path | None) -> Iterator[str]:
    """Open all that is closed outside leases; lines of what was done, and of what runs on.

    Raises:
        OutsideFault: the agent still runs, or something stays closed.
    """
    config, _ = settings.check(config_path or settings.DEFAULT_PATH)
    config = config.overridden(socket=None, state_dir=state_dir)
    state = config.state.directory
    if not state.is_dir():
        yield f"{state}: no agent was ever here"
        return
    with sole(state):
        wiring.build(_opened(config), wiring.this_node()).open_up()
    yield "VRAM and device nodes are open again to those without a lease"
    if running := _running(wiring.stem(state)):
        numbers = ", ".join(map(str, sorted(running)))
        yield f"these leases go on, with their limits: {numbers} (the kernel holds them)"


def _opened(config: settings.Config) -> settings.Config:
    closure = config.closure.model_copy(update={"enabled": False})
    devices = config.devices.model_copy(update={"gate": "off"})
    return config.model_copy(update={"closure": closure, "devices": devices})


def _running(stem: str) -> frozenset[int]:
    """The leases that have a cgroup still."""
    mount = find_mount()
    if mount is None:
        return frozenset()
    tree = CgroupTree(mount, f"{stem}.slice")
    return frozenset(tree.lease_ids() | tree.nested().keys())
