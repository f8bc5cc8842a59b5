"""Compile the C parts when the package is built, installed or installed editable.

A machine without a compiler, or of another architecture, still installs: `REASON` then lies where the parts
would, and says why they are absent. ``python -m nodeagent.hook.build`` compiles them where their sources are.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path("nodeagent/hook")
REASON = "missing.txt"
MACHINE = "x86_64"

WARNINGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Wshadow")
# The hook loads beside any C library: it needs none, has no versioned symbols, and shows only ioctl().
FREESTANDING = (
    *("-ffreestanding", "-nostdlib", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-stack-protector"),
    *("-fno-tree-loop-distribute-patterns", "-fcf-protection=none", "-fno-asynchronous-unwind-tables"),
    "-Wl,-z,defs,-z,now,-z,relro,-z,noexecstack,--hash-style=both,--build-id=none,-s",
)


@dataclass(frozen=True, slots=True)
class Target:
    """One file to make: its name, its sources and the flags of its own, all in `SOURCE`."""

    name: str
    sources: tuple[str, ...]
    flags: tuple[str, ...]


TARGETS = (
    Target(
        "libgpulease.so",
        (
            *("ioctl.c", "memory.c", "queues.c", "cumask.c", "svm.c", "usage.c", "handles.c"),
            *("lease.c", "devices.c", "state.c", "text.c"),
        ),
        FREESTANDING,
    ),
    Target(
        "gpulease-supervisor",
        (
            *("supervisor.c", "supervisor_request.c", "supervisor_filter.c", "supervisor_launch.c"),
            *("supervisor_take.c", "supervisor_notify.c", "supervisor_account.c", "supervisor_proc.c"),
            *("supervisor_counters.c", "supervisor_files.c", "supervisor_private.c", "cumask.c"),
            *("supervisor_outside.c", "supervisor_attend.c"),
        ),
        ("-D_FORTIFY_SOURCE=2", "-fPIE", "-pie", "-Wl,-z,now,-z,relro,-z,noexecstack"),
    ),
)


def compiler() -> tuple[str, ...]:
    """The words of the compiler's command: ``$CC``, else cc, gcc or clang; empty if there is none."""
    named = shlex.split(os.environ.get("CC", ""))
    candidates = [named] if named else [["cc"], ["gcc"], ["clang"]]
    return next((tuple(words) for words in candidates if shutil.which(words[0])), ())


def unbuildable() -> str | None:
    """Why nothing can be compiled here, or None."""
    if platform.system() != "Linux" or platform.machine() != MACHINE:
        return f"made for Linux on {MACHINE}, not for {platform.system()} on {platform.machine()}"
    if not compiler():
        return "no C compiler was found when the package was built"
    return None


def compile_target(target: Target, source: Path, destination: Path) -> str | None:
    """Make *target* of the files in *source* in the directory *destination*; why it failed, or None.

    It is renamed into place: a file that programs have mapped is never written, nor missing for a moment.
    """
    made = destination / target.name
    new = made.with_name(f"{made.name}.new")
    command = [*compiler(), *WARNINGS, *target.flags, "-o", str(new)]
    result = subprocess.run(
        [*command, *(str(source / name) for name in target.sources)],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode == 0:
        new.replace(made)
        return None
    for stale in (new, made):
        stale.unlink(missing_ok=True)
    lines = [line for line in result.stderr.splitlines() if "error" in line] or result.stderr.splitlines()
    return f"{target.name} did not compile: {lines[0] if lines else f'exit code {result.returncode}'}"


def compile_all(source: Path, destination: Path) -> str | None:
    """Make all `TARGETS` anew and keep `REASON` true; why some are missing, or None."""
    destination.mkdir(parents=True, exist_ok=True)
    reason = unbuildable()
    if reason is None:
        failures = [compile_target(target, source, destination) for target in TARGETS]
        reason = "; ".join(failure for failure in failures if failure) or None
    else:
        for target in TARGETS:  # made by another compiler, of other sources
            (destination / target.name).unlink(missing_ok=True)
    if reason is None:
        (destination / REASON).unlink(missing_ok=True)
    else:
        (destination / REASON).write_text(f"{reason}\n", encoding="utf-8")
    return reason


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.exit(compile_all(here, here))
