"""Namespaces to run a machine's daemons in: all ends with the first process, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 60
OWN_PIDS = ("--pid", "--fork", "--kill-child", "--mount-proc")
OWN_NET = ("--net", *OWN_PIDS)
# Nothing of ours: daemons and jobs see what a service manager or a login would give them.
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/", "LANG": "C.UTF-8"}
# The first process waits for the end of its input, which comes when we are killed, too, and reaps orphans.
STAY = "\necho ready\nexec env --ignore-signal=CHLD cat >/dev/null"


@dataclass(frozen=True)
class Space:
    """Mounts, processes and a host name of their own; *pid* is the first process, seen from outside."""

    pid: int

    @property
    def root(self) -> Path:
        """Its root directory, seen from outside."""
        return Path(f"/proc/{self.pid}/root")

    def command(self, *words: str, user: int | None = None, at: str = "/", pids: bool = True) -> list[str]:
        """The words as run in here, as *user* if given, in no group of ours; without *pids* they see all."""
        spaces = ["--mount", "--net", "--uts", "--ipc", *(["--pid"] if pids else [])]
        who = [] if user is None else [f"--setuid={user}", f"--setgid={user}"]
        return ["nsenter", f"--target={self.pid}", *spaces, *who, f"--wd={at}", "--", *words]

    def run(
        self,
        *words: str,
        user: int | None = None,
        env: dict[str, str] | None = None,
        seconds: float = SECONDS,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; a daemon may go on in the background."""
        return subprocess.run(
            self.command(*words, user=user),
            env={**ENVIRONMENT, **(env or {})},
            text=True,
            capture_output=True,
            timeout=seconds,
            check=False,
            **options,
        )

    def start(
        self, *words: str, user: int | None = None, env: dict[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a command and leave it running."""
        environment = {**ENVIRONMENT, **(env or {})}
        return subprocess.Popen(self.command(*words, user=user), env=environment, text=True, **options)

    def daemon(self, *words: str) -> None:
        """Run a command that puts itself into the background; it must not fail."""
        done = self.run(*words)
        assert done.returncode == 0, f"{words[0]}: {done.stdout}{done.stderr}"


@contextlib.contextmanager
def space(
    script: str, *arguments: str, own: Sequence[str] = OWN_PIDS, before: Sequence[str] = ()
) -> Iterator[Space]:
    """Namespaces that a shell *script* makes ready. *own*: options of unshare; *before* goes before it."""
    words = [*before, "unshare", "--mount", "--uts", "--ipc", *own]
    process = subprocess.Popen(
        [*words, "/bin/sh", "-euc", script + STAY, "sh", *arguments],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin and process.stdout
        try:
            assert process.stdout.readline() == "ready\n", f"no namespaces: {script}"
            yield Space(_innermost(process.pid))
        finally:
            process.stdin.close()


def _innermost(pid: int) -> int:
    """The last of a chain of processes each of which started the next."""
    below = children(pid)
    return _innermost(below[0]) if below else pid


def end(process: subprocess.Popen[Any]) -> None:
    """Kill what `Space.start` started, which is below the nsenter that waits for it."""
    for child in children(process.pid):
        os.kill(child, signal.SIGKILL)
    process.wait()


def children(pid: int) -> list[int]:
    """The pids of a process's children."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
