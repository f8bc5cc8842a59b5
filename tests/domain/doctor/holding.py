"""What the checks of cgroups, VRAM limits, programs, Slurm and engines say of good nodes and of bad ones."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.domain.doctor.cgroups import Cgroups, Vram
from nodeagent.domain.doctor.engines import Engines, Slurm
from nodeagent.domain.doctor.programs import Programs
from nodeagent.domain.level import Level
from nodeagent.domain.slurm_check import Finding

from .case import FAIL, OK, UNSEEN, WARN, Case

A = "0000:05:00.0"
REGION = f"drm/{A}/vram"
CGROUPS = Cgroups(
    "/sys/fs/cgroup",
    controllers=("cpu", "cpuset", "memory", "pids", "dmem"),
    enabled=("cpu", "cpuset", "memory", "pids"),
)
NO_CGROUPS = Cgroups(None)
VRAM = Vram(True, (A,), {REGION: 1 << 37}, holds=True, why="holds")
PROGRAMS = Programs("x86_64", "2.36", "/opt/hook.so", True)


def cgroups(**changes: object) -> Cgroups:
    return replace(CGROUPS, **changes)


def vram(**changes: object) -> Vram:
    return replace(VRAM, **changes)


def programs(**changes: object) -> Programs:
    return replace(PROGRAMS, **changes)


NO_DMEM = vram(offered=False, capacity={}, holds=False, why="not listed")
SLURM = Slurm((Finding(Level.OK, "files", "/etc/slurm/gres.conf"),), spool="/spool")
POOR = (*(SLURM.findings or ()), Finding(Level.WARN, "times", "PrologTimeout is short"))
BAD = (*POOR, Finding(Level.FAIL, "Prolog", "is not ours"))
DOCKER = Engines(
    True, version="29.4.0", driver="systemd", cgroups="2", plugin_named=True, plugin_listens=True
)
NO_DOCKER = Engines(False)


def docker(**changes: object) -> Engines:
    return replace(DOCKER, **changes)


CASES = (
    Case("cgroup-hierarchy", CGROUPS, OK),
    Case("cgroup-hierarchy", NO_CGROUPS, FAIL, "no cgroup2"),
    Case("cgroup-hierarchy", cgroups(legacy=("devices", "memory")), WARN, "devices, memory"),
    Case("cgroup-writable", CGROUPS, OK),
    Case("cgroup-writable", NO_CGROUPS, FAIL),
    Case("cgroup-writable", cgroups(root=False), UNSEEN, "not root"),
    Case("cgroup-writable", cgroups(writable="is mounted read-only"), FAIL, "read-only"),
    Case("cgroup-kill", CGROUPS, OK),
    Case("cgroup-kill", NO_CGROUPS, FAIL),
    Case("cgroup-kill", cgroups(kills=False), WARN, "process by process"),
    Case("cgroup-controllers", CGROUPS, OK),
    Case("cgroup-controllers", NO_CGROUPS, FAIL),
    Case("cgroup-controllers", cgroups(enabled=("cpu", "pids")), WARN, "cpuset, memory not"),
    Case("cgroup-controllers", cgroups(enabled=(), legacy=("cpu",)), WARN, "version 1"),
    Case("dmem-offered", VRAM, OK),
    Case("dmem-offered", NO_DMEM, WARN),
    Case("dmem-regions", VRAM, OK),
    Case("dmem-regions", NO_DMEM, OK),
    Case("dmem-regions", vram(capacity={}), FAIL, f"{A}: no region"),
    Case("dmem-enforcing", VRAM, OK),
    Case("dmem-enforcing", NO_DMEM, OK),
    Case("dmem-enforcing", vram(holds=False, why="of 16 MiB, 0 were charged"), FAIL, "0 were charged"),
    Case("dmem-enforcing", vram(holds=None), UNSEEN, "does not answer"),
    Case("dmem-closure", VRAM, OK),
    Case("dmem-closure", NO_DMEM, OK),
    Case("dmem-closure", vram(enabled=False), WARN, "closure.enabled"),
    Case("dmem-closure", vram(open={"/user.slice": (REGION,)}), WARN, "/user.slice"),
    Case("glibc", PROGRAMS, OK),
    Case("glibc", programs(glibc="2.12"), FAIL, "2.12"),
    Case("glibc", programs(glibc=None), WARN, "musl"),
    Case("hook-installed", PROGRAMS, OK),
    Case("hook-installed", programs(hook_there=False), FAIL, "missing"),
    Case("hook-installed", programs(hook_enabled=False), WARN, "hook.enabled"),
    Case("hook-installed", programs(machine="aarch64"), WARN, "aarch64"),
    Case("hook-loads", PROGRAMS, OK),
    Case("hook-loads", programs(hook_there=False), OK),
    Case("hook-loads", programs(hook_trouble="cannot be preloaded"), FAIL, "cannot be preloaded"),
    Case("open-files", PROGRAMS, OK),
    Case("open-files", programs(files=1024), WARN, "1024"),
    Case("shared-memory", PROGRAMS, OK),
    Case("shared-memory", programs(shm_used=0.95), FAIL, "95% full"),
    Case("shared-memory", programs(shm_leftovers=4), WARN, "4 files"),
    Case("slurm-files", SLURM, OK),
    Case("slurm-files", Slurm(None), OK, "no Slurm"),
    Case("slurm-files", replace(SLURM, findings=BAD, enabled=False), OK, "turned off"),
    Case("slurm-files", replace(SLURM, findings=POOR), WARN, "PrologTimeout is short"),
    Case("slurm-files", replace(SLURM, findings=BAD), FAIL, "Prolog: is not ours"),
    Case("slurm-spool", SLURM, OK),
    Case("slurm-spool", replace(SLURM, waiting=2), WARN, "2 in /spool"),
    Case("slurm-spool", replace(SLURM, spool_trouble="others can write here"), FAIL, "others"),
    Case("docker-answers", DOCKER, OK, "29.4.0"),
    Case("docker-answers", NO_DOCKER, OK),
    Case("docker-answers", docker(version=None, trouble="ECONNREFUSED"), UNSEEN, "ECONNREFUSED"),
    Case("docker-answers", docker(version="18.09.1"), FAIL, "older"),
    Case("docker-answers", docker(version=None, enabled=False), OK, "turned off"),
    Case("docker-cgroups", DOCKER, OK),
    Case("docker-cgroups", docker(driver="cgroupfs"), WARN, "daemon-reload"),
    Case("docker-cgroups", docker(driver="cgroupfs", systemd=False), OK),
    Case("docker-cgroups", docker(cgroups="1"), WARN, "version 1"),
    Case("docker-cgroups", NO_DOCKER, OK),
    Case("docker-release", DOCKER, OK),
    Case("docker-release", docker(version="28.5.2+dfsg"), WARN, "28.5.2"),
    Case("docker-release", docker(version="28.5.2", plugin_named=False), OK),
    Case("docker-plugin", DOCKER, OK),
    Case("docker-plugin", NO_DOCKER, OK),
    Case("docker-plugin", docker(plugin_named=False), WARN, "any GPU"),
    Case("docker-plugin", docker(plugin_listens=False), FAIL, "refuses every call"),
    Case("cdi-directory", DOCKER, OK),
    Case("cdi-directory", docker(cdi_trouble="/run/cdi: mode 777"), FAIL, "777"),
)
