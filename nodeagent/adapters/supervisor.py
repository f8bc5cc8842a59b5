"""Starts commands under gpulease-supervisor: one process a launch, which outlives the agent.

It needs no socket that somebody could reach: the agent starts it, and tells it all in a file that only the
two of them hold (threat 23).
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodeagent.adapters.hook_format import HookDevice, limits_bytes
from nodeagent.adapters.inheritance import Inherited
from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain.errors import NotAllowed, OutsideFault

BINARY = Path(__file__).parent.parent / "hook" / "gpulease-supervisor"
KFD, DRI = Path("/dev/kfd"), Path("/dev/dri")
KFD_PROCESSES = Path("/sys/class/kfd/kfd/proc")

_LONGEST_START_SECONDS = 4.0  # the start is answered by a request, which holds its thread for five at most


@dataclass(frozen=True, slots=True)
class Descriptors:
    """What a command gets, as descriptors of this process; *report* gets ``exited STATUS`` at its end."""

    stdin: int
    stdout: int
    stderr: int
    cwd: int
    report: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One command of a lease. *cgroup* (the lease's) and *home* (the supervisor's) are open directories."""

    lease: int
    devices: tuple[HookDevice, ...]
    cgroup: int
    home: int | None
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    descriptors: Descriptors
    uid: int
    gid: int
    groups: tuple[int, ...]
    inherited: Inherited


class CommandFailed(NotAllowed):
    """The command itself could not be executed; *number* is the errno."""

    def __init__(self, command: str, number: int) -> None:
        super().__init__(f"{command}: {os.strerror(number)}")
        self.number = number


class Supervisor:
    """The program *binary*, for the KFD node *kfd* and its counters below *kfd_processes*.

    Render nodes are known by their device number; what is no device in *dri*, of a fake driver, as a file.
    """

    def __init__(
        self,
        binary: Path = BINARY,
        *,
        kfd: Path = KFD,
        kfd_processes: Path = KFD_PROCESSES,
        dri: Path = DRI,
    ) -> None:
        self._binary = binary
        self._kfd = kfd
        self._kfd_processes = kfd_processes
        self._dri = dri
        self._probed: tuple[str | None] | None = None

    def unavailable(self) -> str | None:
        """Why no command can be supervised here, or None. The kernel is asked once, by trying."""
        if platform.machine() != "x86_64":
            return f"the supervisor is built for x86_64 only, and this is {platform.machine()}"
        if os.geteuid() != 0:
            return "needs root: the filter is to be there before any code of the user"
        if not self._binary.is_file():
            return f"{self._binary} was not built: install a C compiler, then nodeagent again"
        if not self._kfd.exists():
            return f"{self._kfd} does not exist: no program can reach a GPU through it"
        if self._probed is None:
            self._probed = (self._probe(),)
        return self._probed[0]

    def launch(self, launch: Launch) -> int:
        """Start the command and return its pid, once its code runs.

        Raises:
            CommandFailed: there is no such command, or the user may not execute it.
            OutsideFault: something before it failed; nothing of the command ran.
        """
        with contextlib.ExitStack() as stack:
            reading, writing = os.pipe()
            stack.callback(os.close, reading)
            limits = stack.enter_context(
                _memory_file(b"limits", limits_bytes(launch.lease, launch.devices, "", strict=True))
            )
            words = _words(launch, [*self._node(), ("limits", limits), ("answer", writing)])
            request = stack.enter_context(_memory_file(b"request", words))
            given = launch.descriptors
            passed = {
                *(given.stdin, given.stdout, given.stderr, given.cwd, given.report),
                *(launch.cgroup, limits, request, writing),
                *([] if launch.home is None else [launch.home]),
            }
            try:
                # It forks and ends at once: the one that stays is not the agent's child.
                subprocess.run(
                    [self._binary, "launch", str(request)],
                    pass_fds=sorted(passed),
                    cwd="/",
                    env={},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    check=False,  # it answers by the pipe
                    timeout=_LONGEST_START_SECONDS,
                )
            except (OSError, subprocess.SubprocessError) as fault:
                raise OutsideFault(self._binary, f"cannot be started: {fault}") from fault
            finally:
                os.close(writing)
            return self._started(_read_line(reading), launch.argv[0])

    def _node(self) -> list[tuple[str, object]]:
        files = [path for path in self._dri.glob("renderD*") if not path.is_char_device()]
        renders = [("render", f"{path.name.removeprefix('renderD')}:{path}") for path in files]
        return [("kfd", self._kfd), ("kfd_processes", self._kfd_processes), *renders]

    def _started(self, answer: str, command: str) -> int:
        match answer.split():
            case ["started", pid]:
                return int(pid)
            case ["failed", "exec", number]:
                raise CommandFailed(command, int(number))
            case ["failed", step, number]:
                fault = OSError(int(number), os.strerror(int(number)))
                raise outside_fault(f"{self._binary.name}: {step}", fault)
        raise OutsideFault(self._binary, "ended before it had started the command; the log has its words")

    def _probe(self) -> str | None:
        try:
            tried = subprocess.run(
                [self._binary, "probe"], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.SubprocessError) as fault:
            return f"{self._binary}: {fault}"
        return None if tried.returncode == 0 else tried.stdout.strip() or f"{self._binary}: probe failed"


def _words(launch: Launch, node: Sequence[tuple[str, object]]) -> bytes:
    """The request as nodeagent/hook/supervisor_request.c reads it. Raises NotAllowed for a word with NUL."""
    given, inherited = launch.descriptors, launch.inherited
    settings: list[tuple[str, object]] = [
        ("lease", launch.lease),
        *node,
        ("cgroup", launch.cgroup),
        ("home", -1 if launch.home is None else launch.home),
        ("stdin", given.stdin),
        ("stdout", given.stdout),
        ("stderr", given.stderr),
        ("cwd", given.cwd),
        ("report", given.report),
        ("uid", launch.uid),
        ("gid", launch.gid),
        ("groups", ",".join(map(str, launch.groups))),
        ("umask", f"{inherited.umask:o}"),
        ("nice", inherited.nice),
        ("oom", inherited.oom_score_adj),
        ("no_new_privileges", int(inherited.no_new_privileges)),
        ("ignored", f"{inherited.ignored_signals:x}"),
        ("cpus", _mask(inherited.cpus).hex()),
        ("argc", len(launch.argv)),
        *(("rlimit", f"{which}:{soft}:{hard}") for which, (soft, hard) in inherited.limits.items()),
    ]
    words = [f"{name}={value}" for name, value in settings]
    environment = [f"{name}={value}" for name, value in launch.environment.items()]
    everything = [*words, "", *launch.argv, *environment]
    if any("\0" in word for word in everything):
        raise NotAllowed("a word of the command or its environment holds NUL")
    return b"".join(os.fsencode(word) + b"\0" for word in everything)


def _mask(cpus: frozenset[int]) -> bytes:
    bits = sum(1 << cpu for cpu in cpus)
    return bits.to_bytes((max(cpus) // 8) + 1, "little")


@contextlib.contextmanager
def _memory_file(name: bytes, content: bytes) -> Iterator[int]:
    """A file that is only a descriptor."""
    descriptor = os.memfd_create(os.fsdecode(name), os.MFD_CLOEXEC)
    try:
        written = 0
        while written < len(content):
            written += os.write(descriptor, content[written:])
        yield descriptor
    finally:
        os.close(descriptor)


def _read_line(descriptor: int) -> str:
    """A line of at most a pipe's atomic size, or as much as came in time."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(_LONGEST_START_SECONDS * 1000):
        return ""
    return os.read(descriptor, 4096).decode("ascii", "replace").strip()
