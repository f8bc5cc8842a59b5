"""Starts gpulease-supervisor: a process for each command, and for the containers of a lease.

It outlives the agent. It supervises commands, or gives them shared memory of their own, or both. The agent
starts it, and tells it all in a file that only the two of them hold (threat 23). What a caller offers is
taken by the child that becomes the command: a file of a user's own file system may stall whoever closes it,
so the agent never holds one. Containers are started by their engine, whose runtime finds their supervisor by
a socket that root alone can reach.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import select
import socket
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodeagent.adapters.hook_format import HookDevice, limits_bytes
from nodeagent.adapters.inheritance import Inherited
from nodeagent.adapters.launcher import HERE, LONGEST_START_SECONDS, Launcher
from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain.errors import AgentError, InvalidField, NotAllowed, OutsideFault

BINARY = Path(__file__).parent.parent / "hook" / "gpulease-supervisor"
KFD, DRI = Path("/dev/kfd"), Path("/dev/dri")
KFD_PROCESSES = Path("/sys/class/kfd/kfd/proc")

_REFUSALS = {
    "peer": "the process that asked has ended, or runs a privileged program: launch from an ordinary one",
    "seals": "the command must lie in a memory file that is sealed against every change",
    "size": "the command and its environment are over 6 MiB",
    "shm": "the working directory lies in the node's /dev/shm, which the command is not to have: start it "
    "from another one",
    "timeout": "the command did not start in time: its program, its directory or one of its descriptors "
    "lies on a file system that does not answer",
}


@dataclass(frozen=True, slots=True)
class Offered:
    """Numbers of descriptors of the caller's own: the command's words, what it gets, where its end is told.

    *command* is a memory file, sealed against every change, of NUL-ended words: how many the command has, the
    command's, then its environment's. *report* is a pipe's writing end that gets ``exited STATUS``.
    """

    command: int
    stdin: int
    stdout: int
    stderr: int
    cwd: int
    report: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One command of a lease, for one of the user *uid*'s processes.

    *cgroup* (the lease's) and *home* (the supervisor's) are open directories. Without *devices* nobody is
    asked about allocations.
    """

    lease: int
    devices: tuple[HookDevice, ...] | None
    cgroup: int
    home: int | None
    peer: int  # the caller's pidfd
    peer_pid: int
    offered: Offered
    uid: int
    gid: int
    groups: tuple[int, ...]
    inherited: Inherited
    private_ipc: bool = False  # an IPC namespace and a /dev/shm that nobody else has


@dataclass(frozen=True, slots=True)
class Attendance:
    """A supervisor of all containers of a lease, which are to lie in or below the cgroup *within*.

    *socket* is where their runtimes hand listeners over; *home* as in `Launch`.
    """

    lease: int
    devices: tuple[HookDevice, ...]
    within: str
    home: int | None
    socket: Path


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
        launcher: Launcher = HERE,
    ) -> None:
        self._binary = binary
        self._kfd = kfd
        self._kfd_processes = kfd_processes
        self._dri = dri
        self._launcher = launcher
        self._probed: dict[str, str | None] = {}

    @property
    def world(self) -> Path:
        """What a command begins with: see `Launcher`."""
        return self._launcher.world

    def unavailable(self) -> str | None:
        """Why no command can be supervised here, or None. The kernel is asked once, by trying."""
        if why := self._unable():
            return why
        if not self._kfd.exists():
            return f"{self._kfd} does not exist: no program can reach a GPU through it"
        return self._probe("probe")

    def no_private_ipc(self) -> str | None:
        """Why no command can have shared memory of its own here, or None. Asked once, by trying."""
        return self._unable() or self._probe("probe-ipc")

    def _unable(self) -> str | None:
        """Why no command can be started by it at all."""
        if platform.machine() != "x86_64":
            return f"the supervisor is built for x86_64 only, and this is {platform.machine()}"
        if os.geteuid() != 0:
            return "needs root: it is to be there before any code of the user"
        if not self._binary.is_file():
            return f"{self._binary} was not built: install a C compiler, then nodeagent again"
        return None

    def launch(self, launch: Launch) -> int:
        """Start the command and return its pid, once its code runs.

        Raises:
            CommandFailed: there is no such command, or the user may not execute it.
            InvalidField: the command or the report is not what `Offered` says.
            NotAllowed: the caller has no such descriptor, has ended or is privileged, the command is not
                sealed, or something of the caller's does not answer.
            OutsideFault: something else failed; nothing of the command ran.
        """
        passed = (launch.peer, launch.cgroup, launch.home)
        return self._start(launch.lease, launch.devices, _of_launch(launch), passed)

    def attend(self, attendance: Attendance) -> None:
        """Have a supervisor listen at the socket; one that does already goes on alone.

        It ends when the socket has been removed, and the last process that it is asked about has ended.
        Raises OutsideFault where it cannot: nothing listens then.
        """
        if self.attends(attendance.socket):
            return
        words = [("socket", attendance.socket), ("within", attendance.within), _home(attendance)]
        self._start(attendance.lease, attendance.devices, words, (attendance.home,))

    @staticmethod
    def attends(path: Path) -> bool:
        """Whether a supervisor listens at *path*."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
            try:
                asked.connect(str(path))
            except OSError:
                return False
            return True

    def _start(
        self,
        lease: int,
        devices: Sequence[HookDevice] | None,
        words: Sequence[tuple[str, object]],
        passed: Collection[int | None],
    ) -> int:
        """Start the process that *words* ask for, with the descriptors *passed* that they name."""
        with contextlib.ExitStack() as stack:
            reading, writing = os.pipe()
            stack.callback(os.close, reading)
            said = [("lease", lease), *words, ("answer", writing)]
            taken = {writing, *(one for one in passed if one is not None)}
            if devices is not None:
                content = limits_bytes(lease, devices, "", strict=True)
                limits = stack.enter_context(_memory_file(b"limits", content))
                said += [*self._node(), ("limits", limits)]
                taken.add(limits)
            request = stack.enter_context(_memory_file(b"request", _text(said)))
            try:
                self._launcher.launch(self._binary, request, sorted(taken))
            finally:
                os.close(writing)
            return self._started(_read_line(reading))

    def _node(self) -> list[tuple[str, object]]:
        files = [path for path in self._dri.glob("renderD*") if not path.is_char_device()]
        renders = [("render", f"{path.name.removeprefix('renderD')}:{path}") for path in files]
        return [("kfd", self._kfd), ("kfd_processes", self._kfd_processes), *renders]

    def _started(self, answer: str) -> int:
        match answer.split(" ", 4):
            case ["started", pid]:
                return int(pid)
            case ["failed", step, number, detail, *word]:
                raise self._fault(step, int(number), int(detail), *word)
        raise OutsideFault(self._binary, "ended before it had started the command; the log has its words")

    def _fault(self, step: str, number: int, detail: int, word: str = "") -> AgentError:
        """What a step of the supervisor's says of the caller, or of this machine."""
        match step:
            case "exec":
                return CommandFailed(word, number)
            case "descriptor" if number == errno.EBADF:
                return NotAllowed(f"the peer has no descriptor {detail}")
            case "descriptor":
                return NotAllowed(f"descriptor {detail} of the peer cannot be taken: {os.strerror(number)}")
            case "words":
                return InvalidField("descriptors.command", "is not a count and as many NUL-ended words")
            case "report":
                return InvalidField("descriptors.report", "is not a pipe that somebody reads")
        if step in _REFUSALS:
            return NotAllowed(_REFUSALS[step])
        return outside_fault(f"{self._binary.name}: {step}", OSError(number, os.strerror(number)))

    def _probe(self, what: str) -> str | None:
        if what not in self._probed:
            self._probed[what] = self._launcher.probe(self._binary, what)
        return self._probed[what]


def _of_launch(launch: Launch) -> Sequence[tuple[str, object]]:
    given, inherited = launch.offered, launch.inherited
    return [
        ("cgroup", launch.cgroup),
        _home(launch),
        ("peer", launch.peer),
        ("peer_pid", launch.peer_pid),
        ("command", given.command),
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
        ("private_ipc", int(launch.private_ipc)),
        ("ignored", f"{inherited.ignored_signals:x}"),
        ("cpus", _mask(inherited.cpus).hex()),
        *(("rlimit", f"{which}:{soft}:{hard}") for which, (soft, hard) in inherited.limits.items()),
    ]


def _home(started: Launch | Attendance) -> tuple[str, object]:
    return "home", -1 if started.home is None else started.home


def _text(words: Sequence[tuple[str, object]]) -> bytes:
    """The request as nodeagent/hook/supervisor_request.c reads it."""
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in words)


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
    if not poll.poll(LONGEST_START_SECONDS * 1000):
        return ""
    return os.read(descriptor, 4096).decode("ascii", "replace").strip()
