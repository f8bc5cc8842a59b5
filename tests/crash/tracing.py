"""The tracer's two sides: the harness that serves it processes, and the process that is to be killed."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = {"tracer": ("tracer.c", "surviving.c"), "holder": ("holder.c",)}
BUILD = ("cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror")

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_MARK = 0x63726173
_INSTRUCTION_BYTES = 8
_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


@dataclass(frozen=True, slots=True)
class Kill:
    """Die at the *n*-th state-changing call from here on, before it or after; 0: do not die."""

    n: int
    after: bool

    @property
    def how(self) -> int:
        return int(self.after)

    @property
    def side(self) -> str:
        return "after" if self.after else "before"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Let the *n*-th write or sync from here on fail with EIO: that one, or *lasting*, all from there on."""

    n: int
    lasting: bool

    @property
    def how(self) -> int:
        return 2 + self.lasting

    @property
    def side(self) -> str:
        return "fails-on" if self.lasting else "fails"


@dataclass(frozen=True, slots=True)
class Traced:
    """What the tracer tells of one process: how many calls each mark found, and how it ended."""

    counts: tuple[int, ...]
    killed: str | None  # the name of the call that was its last
    disk: tuple[int, ...] = ()  # how many of the calls of each mark were writes to a disk, and syncs
    refused: tuple[str, ...] = ()  # names of calls, each the first that failed after a mark


def build_tools(directory: Path) -> Path:
    """Compile the tracer and the holder into *directory*, for every user to run."""
    directory.chmod(0o755)
    for name, sources in PROGRAMS.items():
        subprocess.run([*BUILD, "-o", directory / name, *(HERE / source for source in sources)], check=True)
    return directory


class Tracer:
    """A running tracer. *state*: the directory whose disk fails; what it synced is kept in *surviving*."""

    def __init__(self, tools: Path, *, state: Path | None = None, surviving: Path | None = None) -> None:
        executable = tools / "tracer"
        self.filter = subprocess.run([executable, "--filter"], check=True, capture_output=True).stdout
        kept = [str(path) for path in (state, surviving) if path is not None]
        self._process = subprocess.Popen(
            [executable, *kept], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def seize(self, pid: int) -> None:
        """Trace *pid*, which must have one thread and not run on before this returns."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{pid}\n")
        self._process.stdin.flush()
        answer = self._line()
        if answer != ["ready"]:
            raise RuntimeError(f"the tracer did not take process {pid}: {answer}")

    def traced(self) -> Traced:
        """Everything that was told of the last process, once it is gone."""
        counts, disk, refused, killed = [], [], [], None
        while True:
            match self._line():
                case ["mark", count, on_disk]:
                    counts.append(int(count))
                    disk.append(int(on_disk))
                case ["refused", _, name]:
                    refused.append(name)
                case ["killed", _, _, name]:
                    killed = name
                case ["gone", _]:
                    return Traced(tuple(counts), killed, tuple(disk), tuple(refused))
                case other:
                    raise RuntimeError(f"the tracer ended: {other}")

    def close(self) -> None:
        """End the tracer, and with it what it traces."""
        self._process.kill()
        self._process.wait()

    def _line(self) -> list[str]:
        assert self._process.stdout is not None
        return self._process.stdout.readline().split()


def load_filter(program: bytes) -> None:
    """From here on, this process stops at every state-changing call. It needs a tracer, or each fails."""
    loaded = _Program(len(program) // _INSTRUCTION_BYTES, program)
    if _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(loaded), 0, 0):
        raise OSError(ctypes.get_errno(), "the seccomp filter was not taken: this needs root")


def arm(n: int, how: int = 0) -> None:
    """Count from here, and die or fail at the *n*-th call, *how* as `Kill` or `Refusal` says; 0: neither."""
    _libc.prctl(_MARK, ctypes.c_ulong(n), ctypes.c_ulong(how), 0, 0)
