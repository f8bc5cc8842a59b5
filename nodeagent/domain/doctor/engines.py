"""Checks of Slurm and of container engines: their files, versions and plugins."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nodeagent.domain.doctor.check import Verdict, check, either, fail, ok, unseen, warn
from nodeagent.domain.level import Level
from nodeagent.domain.slurm_check import Finding as SlurmFinding

SLURM, CONTAINERS = "slurm", "containers"
_FIXED_DOCKER = (29, 3, 1)  # CVE-2026-34040: before, dockerd shows plugins no body that is large
_OLDEST_DOCKER = (19, 3)


@dataclass(frozen=True, slots=True)
class Slurm:
    """What `nodeagent slurm check` found; None where no Slurm runs here. *waiting*: calls in the spool."""

    findings: tuple[SlurmFinding, ...] | None
    enabled: bool = True
    waiting: int = 0
    spool: str = ""
    spool_trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Engines:
    """Docker, as it says itself, and what is set up for it. *version* None: none answers."""

    installed: bool
    version: str | None = None
    driver: str | None = None  # "systemd" | "cgroupfs"
    cgroups: str | None = None  # "1" | "2"
    enabled: bool = True  # docker.enabled
    trouble: str | None = None  # why docker does not answer
    systemd: bool = True  # whether systemd runs the node
    plugin_named: bool = False  # in docker's authorization plugins
    plugin_listens: bool = False
    cdi_trouble: str | None = None  # who else can write the CDI directory
    cdi_directory: str = "/run/cdi"


@check(
    Slurm,
    SLURM,
    fix="`nodeagent slurm check` has every line; `nodeagent slurm gres-conf` prints what is missing",
    issue="SlinkyProject/slurm-operator#57",
)
def slurm_files(slurm: Slurm) -> Verdict:
    """gres.conf, slurm.conf and cgroup.conf fit the devices, the scripts and the ledger."""
    if slurm.findings is None or not slurm.enabled:
        return ok("no Slurm here" if slurm.enabled else "turned off by slurm.enabled")
    bad = [one for one in slurm.findings if one.level is Level.FAIL]
    poor = [one for one in slurm.findings if one.level is Level.WARN]
    told = [f"{one.what}: {one.why}" for one in (*bad, *poor)]
    return either(told, fail if bad else warn, f"{len(slurm.findings)} things looked at")


@check(
    Slurm,
    SLURM,
    fix="start the agent, which acts on them; the directory must be root's alone (chmod 0700)",
    issue="NVIDIA/deepops#159",
)
def slurm_spool(slurm: Slurm) -> Verdict:
    """No call of Slurm's scripts waits for an agent that did not answer it."""
    if slurm.spool_trouble:
        return fail(slurm.spool_trouble)
    offenders = [f"{slurm.waiting} in {slurm.spool}"] if slurm.waiting else []
    return either(offenders, warn, "none waits")


@check(
    Engines,
    CONTAINERS,
    fix="start docker, or set docker.enabled = false; docker.socket names another one",
    issue="AMD-AGI/Hyperloom#1572",
)
def docker_answers(engines: Engines) -> Verdict:
    """The docker that is installed answers, and is one that the agent can speak with."""
    if not engines.installed or not engines.enabled:
        return ok("no docker here" if engines.enabled else "turned off by docker.enabled")
    if engines.version is None:
        return unseen(engines.trouble or "it does not answer")
    if _numbers(engines.version)[:2] < _OLDEST_DOCKER:
        return fail(f"docker {engines.version} is older than 19.03")
    return ok(f"docker {engines.version}")


@check(
    Engines,
    CONTAINERS,
    fix='set "exec-opts": ["native.cgroupdriver=systemd"] in /etc/docker/daemon.json, restart docker',
    issue="NVIDIA/nvidia-container-toolkit#1227",
)
def docker_cgroups(engines: Engines) -> Verdict:
    """Docker makes containers' cgroups as the node's init does, in version 2."""
    if engines.version is None:
        return ok("no docker that answers")
    if engines.systemd and engines.driver == "cgroupfs":
        return warn("cgroupfs on a node of systemd: a daemon-reload may undo what containers were given")
    if engines.cgroups == "1":
        return warn("cgroup version 1: no kernel limits for containers' leases")
    return ok(f"{engines.driver}, version {engines.cgroups}")


@check(
    Engines,
    CONTAINERS,
    fix="upgrade docker to 29.3.1, or to a distribution's version that has the fix",
    issue="golang/vulndb#4887",
)
def docker_release(engines: Engines) -> Verdict:
    """A docker whose calls our plugin judges shows it all of each call (CVE-2026-34040)."""
    if engines.version is None or not engines.plugin_named:
        return ok("no plugin of ours in use")
    if _numbers(engines.version) < _FIXED_DOCKER:
        return warn(f"docker {engines.version}: from upstream it hides large calls; Debian's does not")
    return ok(f"docker {engines.version}")


@check(
    Engines,
    CONTAINERS,
    fix='enable nodeagent-docker-plugin.socket, name it in "authorization-plugins" (docs/docker-plugin.md)',
    issue="NVIDIA/nvidia-container-toolkit#211",
)
def docker_plugin(engines: Engines) -> Verdict:
    """Who may talk to docker gets no GPU past the agent: its authorization plugin is in use, and listens."""
    if not engines.installed:
        return ok("no docker here")
    if engines.plugin_named and not engines.plugin_listens:
        return fail("docker names the plugin, and nothing listens: docker refuses every call")
    if not engines.plugin_named:
        return warn("not in use: whoever may talk to docker can take any GPU (docker run --device /dev/dri)")
    return ok("in use")


@check(
    Engines,
    CONTAINERS,
    fix="chown root and chmod 0755 it: an engine gives a container whatever a file there says",
    issue="redhat-appstudio/infra-deployments#7603",
)
def cdi_directory(engines: Engines) -> Verdict:
    """Only root can put device files where engines look for them (CDI)."""
    return either([engines.cdi_trouble] if engines.cdi_trouble else [], fail, engines.cdi_directory)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]{1,6}", version)[:3])


CHECKS = (
    slurm_files,
    slurm_spool,
    docker_answers,
    docker_cgroups,
    docker_release,
    docker_plugin,
    cdi_directory,
)
