"""Gathers what the checks of Slurm and of container engines judge."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from nodeagent.adapters.docker_socket import SOCKET as PLUGIN
from nodeagent.adapters.engine import EngineSocket
from nodeagent.adapters.slurm_conf import GRES, STANDARD
from nodeagent.adapters.slurm_conf import SLURM as SLURM_CONF
from nodeagent.adapters.spool import SpoolFiles
from nodeagent.doctor.scene import Scene
from nodeagent.domain.doctor.check import Unseen
from nodeagent.domain.doctor.engines import Engines, Slurm
from nodeagent.domain.errors import OutsideFault

_LISTENS = 1 << 16  # __SO_ACCEPTCON, field 4 of /proc/net/unix
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def slurm(scene: Scene) -> Slurm | Unseen:
    """Slurm's files as `nodeagent slurm check` sees them, and the calls that wait for the agent."""
    spool = scene.config.slurm.spool
    found = tuple(scene.slurm()) if scene.slurm is not None and _has_slurm(scene) else None
    trouble, waiting = None, 0
    try:
        waiting = sum(1 for _ in SpoolFiles(spool).read())
    except OutsideFault as fault:
        if not scene.root_user:
            return Unseen(f"{spool}: only root may look into it")
        trouble = str(fault)
    return Slurm(found, scene.config.slurm.enabled, waiting, str(spool), trouble)


def engines(scene: Scene) -> Engines:
    """Docker by its own word, its authorization plugin by who listens, the CDI directory by its owner."""
    config = scene.config
    socket = config.docker.socket
    installed = socket.exists() or shutil.which("dockerd", path=_PATH) is not None
    bare = Engines(
        installed,
        enabled=config.docker.enabled,
        systemd=scene.tree.exists("run/systemd/system"),
        plugin_listens=listens(PLUGIN, scene.at("/proc")),
        cdi_trouble=open_to_others(config.cdi.directory),
        cdi_directory=str(config.cdi.directory),
    )
    if not installed or not config.docker.enabled:
        return bare
    try:
        daemon, info = EngineSocket(socket).daemon(), EngineSocket(socket).info()
    except OutsideFault as fault:
        return replace(bare, trouble=str(fault))
    return replace(
        bare,
        version=daemon.version,
        driver=info.driver,
        cgroups=info.version,
        plugin_named=any(Path(name).stem == PLUGIN.stem for name in daemon.authorization),
    )


def listens(socket: Path, proc: Path) -> bool:
    """Whether somebody listens at *socket*. Connecting would start a unit that systemd listens for."""
    try:
        lines = (proc / "net/unix").read_text(encoding="utf-8", errors="replace").splitlines()[1:]
    except OSError:
        return False
    sockets = (line.split(maxsplit=7) for line in lines)
    # /var/run is /run on every node that systemd runs.
    names = {str(socket), str(socket).replace("/run/", "/var/run/", 1)}
    return any(len(one) == 8 and one[7] in names and int(one[3], 16) & _LISTENS for one in sockets)


def open_to_others(directory: Path) -> str | None:
    """Who else than root can put files into *directory*; None: nobody, or there is none yet."""
    try:
        status = directory.stat()
    except OSError:
        return None
    if status.st_uid not in (0, os.geteuid()):
        return f"{directory} belongs to uid {status.st_uid}"
    return f"{directory}: mode {status.st_mode & 0o7777:o}" if status.st_mode & 0o022 else None


def _has_slurm(scene: Scene) -> bool:
    """Whether there is a file of Slurm's to look at: its programs alone make no node of a cluster."""
    named = bool(scene.config.slurm.gres_conf) or (scene.real and "SLURM_CONF" in os.environ)
    return named or any(
        scene.at(f"{path}/{name}").exists() for path in STANDARD for name in (GRES, SLURM_CONF)
    )
