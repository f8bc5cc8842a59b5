"""An agent on a simulated node, and a directory in which somebody types what the documentation says."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpulease.transport import Transport
from nodeagent.wiring.state import stem

MACHINE, DEVICE = "mi300x-spx", "0000:c7:00.0"
PROGRAMS = {  # that the examples name
    "train.py": "print('trained')",
    **dict.fromkeys(("solver", "job", "train"), "echo solved"),
    "docker": "exit 0",
}


@dataclass
class Desk:
    """An agent on a simulated node, and a directory with the programs that the page's commands name."""

    directory: Path
    lease: str = "17"
    printed: dict[str, str] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)

    @property
    def socket(self) -> str:
        return str(self.directory / "s")

    @property
    def state(self) -> Path:
        return self.directory / "state"

    def as_here(self, text: str) -> str:
        """*text* with this node's lease, which the pages call 17 or 7, and device in place of the page's."""
        return re.sub(r"\b17\b|\b7$", self.lease, text.replace("0000:c1:00.0", DEVICE))

    def words(self, line: str) -> list[str]:
        """The command for this desk's agent; an engine's is only worked out, as there is none."""
        program, verb, *rest = shlex.split(self.as_here(line))
        module = {"gpulease": "gpulease", "nodeagent": "nodeagent.cli.main"}[program]
        if verb == "docker":
            rest[1:1] = ["--dry-run"]
        elif verb in ("bypass", "report"):
            rest += ["--state-dir", str(self.state)]
        return [sys.executable, "-m", module, verb, *rest]

    def type(self, line: str) -> int:
        """Run it to its end, and keep what it prints and its exit code, which is returned."""
        done = self.run(self.words(line))
        self.printed[line], self.codes[line] = done.stdout + done.stderr, done.returncode
        granted = re.match(r"lease (\d+): active", done.stdout)
        if granted:
            self.lease = granted[1]
        return done.returncode

    def run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """A program, which finds this agent, and the programs that lie here."""
        path = f"{self.directory}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "GPULEASE_SOCKET": self.socket, "PATH": path}
        return subprocess.run(
            words,
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@contextmanager
def at_a_desk() -> Iterator[Desk]:
    """One with an agent that grants."""
    made = Desk(Path(tempfile.mkdtemp(prefix="everyday-")))
    for name, text in PROGRAMS.items():
        (made.directory / name).write_text(text if name.endswith(".py") else f"#!/bin/sh\n{text}\n")
        (made.directory / name).chmod(0o755)
    words = ["serve", "--simulate", MACHINE, "--socket", made.socket, "--state-dir", str(made.state)]
    with (made.directory / "log").open("wb") as log:
        agent = subprocess.Popen([sys.executable, "-m", "nodeagent.cli.main", *words], stderr=log)
    try:
        _await_ready(made)
        yield made
    finally:
        (Path("/run/nodeagent/bypass") / stem(made.state)).unlink(missing_ok=True)
        agent.terminate()
        agent.wait(30)
        shutil.rmtree(made.directory, ignore_errors=True)


def _await_ready(desk: Desk) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            if Transport(desk.socket, timeout=5).call("GET", "/readyz", None).status == 200:
                return
        except Exception:  # not yet
            assert time.monotonic() < deadline, (desk.directory / "log").read_text()
        time.sleep(0.1)
