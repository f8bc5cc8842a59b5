"""One simulated node with its state directory, real cgroups and sleeping holders: what agents die in."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeagent import wiring
from nodeagent.adapters import machine

from . import subject
from .ledger_copy import LEDGER, Ledger, read_ledger
from .outside import Outside, Places, look
from .tracing import Kill, Refusal, Traced, Tracer
from .word import Holder

MACHINE = "vega10"  # two devices, and so many conflicts
DEVICE = "renderD128/0"  # one of them
KFD_NUMBER = (511, 0)
DRM_MAJOR, RENDER_MINORS = 226, (128, 129)
RUN = Path("/run")
HOOK = RUN / "nodeagent" / "hook"
NEXT_MIGRATIONS = RUN / "migrations"  # of the next version
FIRST_NS = 10**12
NO_KILL = Kill(0, after=False)
ANSWER_SECONDS = 90.0


def cgroup2_mount() -> Path:
    """Where the unified hierarchy is mounted."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        if right.split()[0] == "cgroup2":
            return Path(left.split()[4])
    raise SystemExit("no cgroup2 mount: the crash proof needs one")


@dataclass
class Running:
    """An agent's process."""

    pid: int
    connection: socket.socket

    def ask(self, verb: str, kill: Kill | Refusal, now_ns: int, **asked: Any) -> dict[str, Any] | None:
        """What it answers; None: it died before it could."""
        request = {"verb": verb, "n": kill.n, "how": kill.how, "now_ns": now_ns, **asked}
        try:
            self.connection.send(json.dumps(request).encode())
            answer = self.connection.recv(1 << 16)
        except (BrokenPipeError, ConnectionResetError):
            return None
        except TimeoutError:
            raise SystemExit(f"{verb} of process {self.pid} was never answered") from None
        return json.loads(answer) if answer else None


class World:
    """Made anew for every few dozen deaths. *keeps*: it also knows what a power loss would leave.

    In *real_time* none is skipped, so the kernel's times are the agent's too, and holders make shared memory.
    *old*: there is a ledger of the oldest revision, with leases of another boot.
    """

    def __init__(self, tools: Path, *, keeps: bool, real_time: bool, old: bool = False) -> None:
        self.base = RUN / f"crash-{secrets.token_hex(6)}"
        self.state, self.root = self.base / "state", self.base / "machine"
        self._surviving = self.base / "surviving"
        self._job = cgroup2_mount() / self.base.name.replace("crash", "crashjob")
        for directory in (self.base, self.state, self._surviving):
            directory.mkdir(mode=0o700)
        self.real_time = real_time
        self.clock = subject.Clock("boot-0", FIRST_NS)
        if real_time:
            self.clock.booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        self.pass_time(0)
        self._holder = tools / "holder"
        self.holders: list[Holder] = []
        self._machine = machine.find(MACHINE)
        machine.materialise(self._machine, self.root)
        self._make_nodes()
        self._job.mkdir()
        stem = wiring.stem(self.state)
        self.places = Places(
            cgroup2_mount(), stem, HOOK, HOOK.parent / "leases" / stem, self.state, self.root / "dev"
        )
        self._tracer = Tracer(tools, state=self.state, surviving=self._surviving if keeps else None)
        self._built: wiring.Built | None = None
        self.kept_backup: Path | None = None
        self.later = False  # whether a later version of the agent is installed
        if old:
            subject.old_ledger(self.state / LEDGER, DEVICE)
            self._all_synced()

    def build(self) -> wiring.Built:
        """The agent of this boot, which has not started yet."""
        if self._built is None:
            self._built = subject.build(self.state, self.root, self._machine, self.clock)
        return self._built

    def spawn(self) -> Running:
        """A fresh agent process that stops at each state-changing call; it has not started yet."""
        built = self.build()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                if self.later:
                    subject.next_version(NEXT_MIGRATIONS)
                subject.serve(built, self.clock, theirs, self._tracer.filter)
            finally:
                os._exit(0)
        theirs.close()
        ours.settimeout(ANSWER_SECONDS)
        self._tracer.seize(pid)
        ours.send(b"!")
        return Running(pid, ours)

    def buried(self, running: Running) -> Traced:
        """What the tracer saw, once the agent is dead: killed here if it was not."""
        running.connection.close()
        with suppress(ProcessLookupError):
            os.kill(running.pid, signal.SIGKILL)
        traced = self._tracer.traced()
        os.waitpid(running.pid, 0)
        return traced

    def holder(self, uid: int, *, in_job: bool = False) -> Holder:
        """A new sleeping process of *uid*; one in a job's cgroup gets its leases nested there."""
        process = subprocess.Popen(
            [self._holder], stdin=subprocess.PIPE, user=uid, group=uid, extra_groups=[], cwd="/"
        )
        if in_job:
            (self._job / "cgroup.procs").write_text(str(process.pid), encoding="ascii")
        self.holders.append(Holder(process, uid))
        return self.holders[-1]

    def pass_time(self, nanoseconds: int) -> None:
        """Turn the clock on, or look at the real one."""
        if self.real_time:
            self.clock.now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        else:
            self.clock.now_ns += nanoseconds

    def ledger(self) -> Ledger:
        return read_ledger(self.state / LEDGER, self.base / "copy")

    def keep_backup(self, target: Path) -> None:
        """From here on *target* is the backup that there is."""
        if self.kept_backup is not None:
            self.kept_backup.unlink()
        self.kept_backup = target

    def ledger_of_backup(self) -> Ledger:
        assert self.kept_backup is not None
        return read_ledger(self.kept_backup, self.base / "copy")

    def lose_ledger(self) -> None:
        """Take all files of the state directory, and the backup: ids start over, and it knows higher ones."""
        self._end_forgotten()
        if self.kept_backup is not None:
            self.kept_backup.unlink()
            self.kept_backup = None
        for path in self.state.iterdir():
            if path.is_file():
                path.unlink()
        self._all_synced()

    def restore(self) -> None:
        """Put the backup in the ledger's place."""
        assert self.kept_backup is not None
        self._end_forgotten()
        for beside in self.state.glob(f"{LEDGER}-*"):
            beside.unlink()
        shutil.copyfile(self.kept_backup, self.state / LEDGER)
        self._all_synced()

    def _end_forgotten(self) -> None:
        """Remove, as a job's end does, the cgroups below jobs of which nobody will know without the ledger.

        They are empty: their leases have no sidecar yet, so nobody was told of them.
        """
        seen = self.outside()
        own = f"/{self.places.stem}.slice/"
        for lease, path in seen.cgroups.items():
            if lease not in seen.sidecars and not path.startswith(own):
                _remove(self.places.mount / path.removeprefix("/"))

    def upgraded(self, before: Ledger, after: Ledger) -> Iterator[str]:
        """A ledger whose schema was changed has its copy of *before* beside it."""
        if before.revision in (None, after.revision):
            return
        copies = self.state.glob(f"{LEDGER}.before-upgrade-from-{before.revision}*")
        if not any(read_ledger(copy, self.base / "copy") == before for copy in copies):
            yield f"there is no copy of the ledger from before its upgrade from {before.revision}"

    def outside(self) -> Outside:
        return look(self.places)

    def lose_power(self, written_back: Callable[[], bool]) -> None:
        """Only what was synced survives: no process, cgroup, ACL or /run does, and the boot is new.

        Of each file that *written_back* is true of, what was written last survives, synced or not: the kernel
        writes when it likes.
        """
        for holder in self.holders:
            holder.end()
        self.holders.clear()
        self._clear_outside()
        self._make_nodes()
        self._job.mkdir()
        names = self._surviving / "names"
        entries = names.read_text(encoding="utf-8").splitlines() if names.exists() else []
        left: dict[str, bytes] = {}
        for inode, name in (entry.split(" ", 1) for entry in entries):
            late, synced = self.state / name, self._surviving / inode
            survivor = late if late.exists() and written_back() else synced
            left[name] = survivor.read_bytes() if survivor.exists() else b""
        shutil.rmtree(self.state)
        self.state.mkdir(mode=0o700)
        for name, content in left.items():
            (self.state / name).write_bytes(content)
            (self.state / name).chmod(0o600)
        self._all_synced()
        self.clock.boot_id = f"boot-{int(self.clock.boot_id.removeprefix('boot-')) + 1}"
        self.clock.now_ns = FIRST_NS
        self._built = None

    def close(self) -> None:
        """Leave nothing."""
        self._tracer.close()
        for holder in self.holders:
            holder.end()
        self._clear_outside()
        shutil.rmtree(self.base)

    def _all_synced(self) -> None:
        shutil.rmtree(self._surviving)
        self._surviving.mkdir(mode=0o700)
        files = [path for path in self.state.iterdir() if path.is_file()]
        for path in files:
            shutil.copyfile(path, self._surviving / str(path.stat().st_ino))
        lines = "".join(f"{path.stat().st_ino} {path.name}\n" for path in files)
        (self._surviving / "names").write_text(lines, encoding="utf-8")

    def _make_nodes(self) -> None:
        """The device nodes of the machine, closed to nobody, as udev makes them at each boot."""
        shutil.rmtree(self.root / "dev", ignore_errors=True)
        (self.root / "dev/dri").mkdir(parents=True)
        (self.root / "sys/class/kfd/kfd/dev").write_text(
            f"{KFD_NUMBER[0]}:{KFD_NUMBER[1]}\n", encoding="ascii"
        )
        os.mknod(self.root / "dev/kfd", 0o20666, os.makedev(*KFD_NUMBER))
        for minor in RENDER_MINORS:
            os.mknod(self.root / f"dev/dri/renderD{minor}", 0o20666, os.makedev(DRM_MAJOR, minor))

    def _clear_outside(self) -> None:
        for top in (self.places.mount / f"{self.places.stem}.slice", self._job):
            if top.exists():
                (top / "cgroup.kill").write_text("1", encoding="ascii")
                for directory in _innermost_first(top):
                    _remove(directory)
        for space in (HOOK / "usage").glob("*"):
            if space.is_mount():
                subprocess.run(["umount", space], check=True)
        shutil.rmtree(HOOK.parent, ignore_errors=True)


def _innermost_first(directory: Path) -> Iterator[Path]:
    for parent, _, _ in os.walk(directory, topdown=False):
        yield Path(parent)


def _remove(directory: Path) -> None:
    """Remove a cgroup whose processes are on their way out."""
    for _ in range(1000):
        try:
            directory.rmdir()
        except OSError:
            time.sleep(0.005)
        else:
            return
    raise SystemExit(f"{directory}: cannot be removed")
