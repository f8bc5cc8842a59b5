"""Checks of what programs are run with: the C library, the hook, their limits, shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.domain.doctor.check import Verdict, check, either, fail, ok, warn

AREA = "programs"
_OLDEST_GLIBC = (2, 17)
_FILES = 65_536  # descriptors: ROCm takes one for each piece of memory that it maps by itself
_FULL = 0.9


@dataclass(frozen=True, slots=True)
class Programs:
    """*hook*: the library's path; *hook_trouble*: why it does not load, or is not root's; *glibc* "2.36"."""

    machine: str
    glibc: str | None
    hook: str
    hook_there: bool
    hook_enabled: bool = True
    hook_trouble: str | None = None
    files: int = _FILES  # hard limit of descriptors for new programs
    shm_used: float = 0.0  # share of /dev/shm
    shm_leftovers: int = 0  # files there of GPU libraries, of users that have no process


@check(
    Programs,
    AREA,
    fix="use a newer distribution, or keep such programs to leases with memory kernel or supervised",
    issue="Project-HAMi/HAMi#2265",
)
def glibc(programs: Programs) -> Verdict:
    """The node's C library can load the hook."""
    if programs.glibc is None:
        return warn("no glibc: the hook is loaded by LD_PRELOAD alone (musl)")
    numbers = tuple(int(part) for part in programs.glibc.split(".")[:2] if part.isdecimal())
    if numbers < _OLDEST_GLIBC:
        return fail(f"glibc {programs.glibc} is older than 2.17")
    return ok(f"glibc {programs.glibc}")


@check(
    Programs,
    AREA,
    fix="install the package for this machine, or a C compiler and nodeagent again (docs/hook.md)",
    issue="Project-HAMi/HAMi#2266",
)
def hook_installed(programs: Programs) -> Verdict:
    """The hook is there for the programs of leases."""
    if not programs.hook_enabled:
        return warn("turned off by hook.enabled: nothing within a program keeps it to its slice")
    if programs.machine != "x86_64":
        return warn(f"built for x86_64 only, and this is {programs.machine}")
    return ok(programs.hook) if programs.hook_there else fail(f"{programs.hook}: is missing")


@check(
    Programs,
    AREA,
    fix="install nodeagent where every user can read it, root's alone to write, on no noexec file system",
    issue="Project-HAMi/HAMi#1090",
)
def hook_loads(programs: Programs) -> Verdict:
    """A program of this node starts with the hook in it."""
    if not programs.hook_enabled or not programs.hook_there:
        return ok("no hook to load")
    return either([programs.hook_trouble] if programs.hook_trouble else [], fail, "it does")


@check(
    Programs,
    AREA,
    fix="raise it: LimitNOFILE= of slurmd and docker, DefaultLimitNOFILE= of systemd, limits.conf for logins",
    issue="ROCm/rocm-systems#10604",
)
def open_files(programs: Programs) -> Verdict:
    """Programs may open files enough: each hipMemCreate takes one, and fails as out of memory."""
    if programs.files < _FILES:
        return warn(f"at most {programs.files}, here")
    return ok(f"{programs.files} files")


@check(
    Programs,
    AREA,
    fix="remove what is nobody's (ls -l /dev/shm); leases with an IPC namespace of their own leave nothing",
    issue="sgl-project/sglang#40723",
)
def shared_memory(programs: Programs) -> Verdict:
    """Shared memory (/dev/shm) has room, and nothing of GPU libraries whose users are gone."""
    if programs.shm_used > _FULL:
        return fail(f"{programs.shm_used:.0%} full: collectives and data loaders fail")
    if programs.shm_leftovers:
        return warn(f"{programs.shm_leftovers} files of GPU libraries, of users without a process")
    return ok(f"{programs.shm_used:.0%} full")


CHECKS = (glibc, hook_installed, hook_loads, open_files, shared_memory)
