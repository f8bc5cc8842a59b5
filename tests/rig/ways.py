"""How the tests try to get out of a lease: commands of a user that begin inside it."""

from __future__ import annotations

import pwd
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rig.wired import CGROUPS, command

USER = "alice"
# What a way out runs: whether 64 MiB of the GPU are to be had there, and in which cgroup that is.
ATTEMPT = """\
#!/bin/sh
exec 3<>{node}
{{ grep ^0:: /proc/self/cgroup; printf 'alloc 64M' >&3 && echo GOT || echo REFUSED; }} >{said}.new 2>&1
mv {said}.new {said}
"""


@dataclass(frozen=True)
class Said:
    """Where an attempt ended up, and what it got there."""

    cgroup: str
    got: bool


def bus() -> Path:
    """The user manager's socket; there once it runs."""
    return Path(f"/run/user/{pwd.getpwnam(USER).pw_uid}/bus")


def as_user(*words: str) -> tuple[str, ...]:
    """The command by that user, who can reach the user manager."""
    known = (f"XDG_RUNTIME_DIR={bus().parent}", f"DBUS_SESSION_BUS_ADDRESS=unix:path={bus()}")
    return ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", "env", *known, *words)


def within(cgroup: Path, *words: str) -> tuple[str, ...]:
    """The command, begun in *cgroup* by root."""
    return ("sh", "-c", f'echo $$ >{cgroup}/cgroup.procs && exec "$@"', "within", *words)


def user_cgroup() -> Path:
    """The cgroup of the user's manager, which is the user's own; there as long as it lingers."""
    uid = pwd.getpwnam(USER).pw_uid
    return CGROUPS / f"user.slice/user-{uid}.slice/user@{uid}.service"


class Ways:
    """Runs ways out, in *directory*, for the GPU whose render node is *node*."""

    def __init__(
        self, directory: Path, node: Path, eventually: Callable[[Callable[[], object]], None]
    ) -> None:
        self._directory = directory
        self._node = node
        self._eventually = eventually
        for above in directory.parents:
            above.chmod(above.stat().st_mode | stat.S_IXOTH)
        directory.chmod(directory.stat().st_mode | stat.S_IRWXO)

    def script(self, name: str) -> Path:
        """A program that makes the attempt *name*."""
        script, said = self._directory / f"{name}.sh", self._said(name)
        said.unlink(missing_ok=True)
        script.write_text(ATTEMPT.format(node=self._node, said=said))
        script.chmod(0o755)
        return script

    def said(self, name: str, told: str = "") -> Said:
        """What the attempt said, once it has; *told*: what the way there said, for when it never comes."""
        try:
            self._eventually(self._said(name).exists)
        except AssertionError:
            pytest.fail(f"{name} never ran: {told}")
        cgroup, *_, outcome = self._said(name).read_text().splitlines()  # between them sh says why not
        return Said(cgroup.removeprefix("0::"), outcome == "GOT")

    def run(self, name: str, *words: str) -> Said:
        """The outcome of the command, in which SCRIPT stands for the attempt."""
        script = str(self.script(name))
        return self.said(name, command(*(word.replace("SCRIPT", script) for word in words)))

    def _said(self, name: str) -> Path:
        return self._directory / f"{name}.said"
