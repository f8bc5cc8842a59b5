"""Fake machines to run real ROCm on: alone, or in leases of an agent; and what reached their kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeagent.adapters.hook_files import LIBRARY
from nodeagent.adapters.supervisor import Supervisor
from tests.fakekfd.control import ask

ROOT = Path(__file__).parents[2]
SECONDS = 60
VRAM_FLAG = 1
MIB, GIB = 1 << 20, 1 << 30
GPUS = 3  # of a node


@dataclass(frozen=True)
class Ran:
    """What a program printed, line by line, and the fake kernel's state after its end."""

    code: int
    lines: list[str]
    errors: str
    state: dict[str, Any]

    def logged(self, what: str) -> list[dict[str, Any]]:
        """What reached the kernel, of one kind: alloc, svm, queue or mask."""
        return [entry for entry in self.state["log"] if entry["what"] == what]

    def vram(self, size: int, gpu: int | None = None) -> list[int]:
        """The codes that the kernel gave to allocations of *size* bytes of VRAM, of all GPUs or of one."""
        asked = [one for one in self.logged("alloc") if one["flags"] & VRAM_FLAG and one["size"] == size]
        return [one["code"] for one in asked if gpu in (None, self._gpu(one))]

    def masks(self, gpu: int | None = None) -> set[str]:
        """The masks that queues ended with, of all GPUs or of one by its index; "" for none."""
        found = {self._queue(entry): "" for entry in self.logged("queue")}
        found |= {self._queue(entry): entry["mask"] for entry in self.logged("mask") if entry["code"] == 0}
        return {mask for (_, at, _), mask in found.items() if gpu in (None, at)}

    def priorities(self) -> list[int]:
        """What queues ended with, in the order of their making."""
        found = {(entry["pid"], entry["queue_id"]): entry["priority"] for entry in self.logged("queue")}
        found |= {(entry["pid"], entry["queue_id"]): entry["priority"] for entry in self.logged("update")}
        return list(found.values())

    def peaks(self) -> list[int]:
        """The most VRAM that was ever in use, by GPU, in MiB."""
        return [gpu["peak"] // MIB for gpu in self.state["gpus"]]

    def _gpu(self, entry: Mapping[str, Any]) -> int:
        return [gpu["gpu_id"] for gpu in self.state["gpus"]].index(entry["gpu_id"])

    def _queue(self, entry: Mapping[str, Any]) -> tuple[int, int, int]:
        return entry["pid"], self._gpu(entry), entry["queue_id"]


@dataclass(frozen=True)
class Tier:
    """What is to hold a lease, with the other tiers out of its way. *before* goes before the command."""

    name: str
    require: Mapping[str, str]
    before: tuple[str, ...] = ()
    settings: str = ""  # of the agent

    def unavailable(self) -> str | None:
        """Why this machine has not got it."""
        if self.name == "supervised":
            return Supervisor(kfd=Path("/dev/null")).unavailable()  # there is a KFD where the agent runs
        return f"{LIBRARY.name} was not built" if self.name == "hook" and not LIBRARY.is_file() else None


MASK = Tier("mask", {}, settings="[hook]\nenabled = false\n")
HOOK = Tier("hook", {"memory": "hook"})
SUPERVISED = Tier("supervised", {"memory": "supervised"}, ("env", "-u", "LD_PRELOAD"))


@dataclass(frozen=True)
class Release:
    """A release of ROCm. *root*: the chroot that it is in, "" for this machine's own."""

    root: str = ""

    @property
    def enter(self) -> tuple[str, ...]:
        """Words that go before a command to give it the release's libraries."""
        return ("/usr/sbin/chroot", self.root) if self.root else ()


@dataclass(frozen=True)
class Bare:
    """One release on machines without an agent, each made for one command."""

    release: Release
    report: Path

    def __call__(self, *command: str, options: tuple[str, ...] = (), **environment: str) -> Ran:
        """Run *command* on a machine of the fake's *options*."""
        root = ("--root", self.release.root) if self.release.root else ()
        fake = (sys.executable, "-m", "tests.fakekfd", *options, *root, "--report", str(self.report))
        done = _run((*fake, "--", *self.release.enter, *command), environment)
        assert self.report.exists(), done.stderr
        return _ran(done, json.loads(self.report.read_text()))


@dataclass(frozen=True)
class Node:
    """A machine of three GPUs with an agent. *pid*: of a process there; *state*: the fake kernel's socket."""

    pid: int
    agent: str
    state: Path

    def run(self, *command: str) -> Ran:
        """Run *command* there; what reached the kernel before is forgotten."""
        ask(self.state, forget=True)
        there = ("nsenter", f"--mount=/proc/{self.pid}/ns/mnt", "--", "env", "-C", str(ROOT))
        done = _run((*there, *command), {"GPULEASE_SOCKET": self.agent})
        return _ran(done, self._settled())

    def _settled(self) -> dict[str, Any]:
        """The kernel's state when it has seen the ends of its processes, which takes it a moment."""
        until = time.monotonic() + SECONDS
        while (state := ask(self.state))["processes"] and time.monotonic() < until:
            time.sleep(0.02)
        return state


@dataclass(frozen=True)
class Leased:
    """One release in leases of one node's agent."""

    release: Release
    tier: Tier
    node: Node

    def __call__(
        self, slices: str | list[dict[str, object]], *command: str, before: tuple[str, ...] = ()
    ) -> Ran:
        """Run *command* in a lease: options of `gpulease run`, or slices as POST /v1/leases takes them.

        *before* goes before the command where this machine's programs are, as `env -u NAME`.
        """
        return self.node.run(*self.take(slices), *self.tier.before, *before, *self.release.enter, *command)

    def take(self, slices: str | list[dict[str, object]]) -> tuple[str, ...]:
        """The words that take the lease, to be followed by a command."""
        if isinstance(slices, list):
            body = json.dumps({"slices": slices, "require": self.tier.require})
            return (sys.executable, "-m", "tests.rocm.slices", body)
        floor = [f"--require={kind}={level}" for kind, level in self.tier.require.items()]
        return (sys.executable, "-m", "gpulease", "run", *floor, *slices.split(), "--")


@contextmanager
def running_node(directory: Path, settings: str, root: str, model: str) -> Iterator[Node]:
    """A node of one GPU model, whose agent has *settings*; the chroot *root* shows it, too."""
    environment = {"PYTHON": sys.executable}
    if settings:
        (directory / "nodeagent.toml").write_text(settings)
        environment["AGENT_CONFIG"] = str(directory / "nodeagent.toml")
    words = [sys.executable, "-m", "tests.fakekfd", "--gpus", str(GPUS), "--machine", model]
    words += ["--socket", str(directory / "state")]
    words += ["--root", root] if root else []
    with subprocess.Popen(
        [*words, "--", "tests/fakekfd/with_agent", "sh", "-c", "echo $$ $GPULEASE_SOCKET; read -r _ || true"],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,  # the node lives until this ends
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout
        pid, agent = process.stdout.readline().split()
        yield Node(int(pid), agent, directory / "state")
        process.stdin.close()


def _run(command: tuple[str, ...], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )


def _ran(done: subprocess.CompletedProcess[str], state: dict[str, Any]) -> Ran:
    return Ran(done.returncode, done.stdout.splitlines(), done.stderr, state)
