"""Slurm on the command line: what its files should hold, and whether they do."""

from __future__ import annotations

import os
import socket as sockets
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpulease.errors import GpuleaseError
from nodeagent import config as settings
from nodeagent.adapters.discovery import discover
from nodeagent.adapters.slurm_conf import SlurmConf
from nodeagent.cli.asking import ask
from nodeagent.domain.device import Inventory
from nodeagent.domain.device_rules import DeviceRules
from nodeagent.domain.errors import AgentError
from nodeagent.domain.gres import owned
from nodeagent.domain.level import Level
from nodeagent.domain.slurm_check import SCRIPT_KEYS, Finding, Site, check
from nodeagent.domain.slurm_scripts import plugin_run, script_settings
from nodeagent.domain.slurm_setup import SCRIPTS, cgroup_conf, gres_conf, set_up, slurm_conf
from nodeagent.wiring import simulated_node, this_node
from nodeagent.wiring import slurm_conf as files_of

PROLOG_CONF = Path("/etc/nodeagent/prolog.conf")
FILES = ("gres.conf", "slurm.conf", "cgroup.conf")


def lines(
    config_path: Path | None, simulate: str | None, node: str | None, shards: int | None, only: str | None
) -> list[str]:
    """The lines for this node; of the file *only*, or of all, each with its name above."""
    config = settings.check(config_path or settings.DEFAULT_PATH)[0]
    with _found(config, simulate) as (_, inventory):
        setup = set_up(node or _hostname(), inventory.devices, shards)
    parts = dict(zip(FILES, (gres_conf(setup), slurm_conf(setup), cgroup_conf()), strict=True))
    if only is not None:
        return parts[only]
    return [line for name, part in parts.items() for line in (f"# --- {name}", *part, "")][:-1]


def examine(
    config_path: Path | None, *, simulate: str | None, node: str | None, socket: Path | None
) -> list[Finding]:
    """The site's files against this node, and against what the running agent makes of them."""
    config = settings.check(config_path or settings.DEFAULT_PATH)[0]
    with _found(config, simulate) as (conf, inventory):
        try:
            files = conf.files()
            gres = conf.gres(inventory, node=node)
            cgroup_lines = conf.beside("cgroup.conf")
        except AgentError as fault:
            return [Finding(Level.FAIL, "files", str(fault))]
    if files is None or gres is None:
        why = "no gres.conf or slurm.conf found: [slurm] gres_conf says where it is, if Slurm runs here"
        return [Finding(Level.FAIL, "files", why)]
    unbelieved = _not_roots(PROLOG_CONF)
    site = Site(
        node=node or files.node,
        inventory=inventory,
        gres=gres,
        counts=files.counts_of(node or files.node),
        gres_lines=files.gres,
        slurm_lines=files.slurm,
        cgroup_lines=cgroup_lines,
        owner=config.devices.owner,
        request_from=config.slurm.request_from,
        scripts=_spoiled(),
        settings=script_settings("" if unbelieved else _text(PROLOG_CONF)),
        settings_fault=unbelieved,
        spool=str(config.slurm.spool),
        plugin_run=plugin_run(_text(files.source.with_name("plugstack.conf"))),
    )
    return [Finding(Level.OK, "files", str(files.source)), *check(site), _agent(site, socket)]


@contextmanager
def _found(config: settings.Config, simulate: str | None) -> Iterator[tuple[SlurmConf, Inventory]]:
    """Slurm's files and the node's devices, or a machine file's."""
    with tempfile.TemporaryDirectory() as place:
        node = simulated_node(simulate, Path(place)) if simulate else this_node()
        rules = DeviceRules(config.devices.shares)
        yield (
            files_of(config, node),
            discover(node.tree, include_apus=config.devices.include_apus, rules=rules),
        )


def _hostname() -> str:
    return sockets.gethostname().partition(".")[0]


def _spoiled() -> Mapping[str, str]:
    """What is wrong with our scripts; root executes them."""
    paths = [Path(SCRIPTS) / name for name in SCRIPT_KEYS.values()]
    return {str(path): why for path in paths if (why := _wrong(path))}


def _text(path: Path) -> str:
    """What a file holds; nothing where it is not there."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _wrong(path: Path) -> str | None:
    try:
        status = path.stat()
    except OSError as fault:
        return f"{path}: {fault.strerror}: install the package's scripts there"
    if not stat.S_ISREG(status.st_mode) or not os.access(path, os.X_OK):
        return f"{path} is no program: chmod 755 it"
    return _not_roots(path)


def _not_roots(path: Path) -> str | None:
    """Why the scripts do not believe a file; None where they do, or it is not there."""
    try:
        status = path.lstat()
    except OSError:
        return None
    # As client/slurm/agent.sh has it: a link is not believed, wherever it leads.
    if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} must be root's own file and writable by nobody else: chown root, chmod go-w"
    return None


def _agent(site: Site, socket: Path | None) -> Finding:
    """Whether the running agent keeps for Slurm what gres.conf names."""
    try:
        devices = ask(socket, "GET", "/v1/devices")["devices"]
    except (GpuleaseError, OSError) as fault:
        return Finding(Level.FAIL, "agent", f"{fault}: jobs with GPUs fail until it runs")
    kept = {device["device"] for device in devices if device.get("owner") == "slurm"}
    others = sorted(owned(site.gres, site.inventory) - kept)
    if others and site.owner in ("auto", "slurm"):
        why = f"gives {others[0]} to others too: restart it, so that it reads these settings"
        return Finding(Level.FAIL, "agent", why)
    return Finding(Level.OK, "agent", f"keeps {len(kept)} devices for Slurm")
