"""The file for a ticket: what is known of this node, each part bounded in time and size.

No environment and no command line of any process is in it. Nothing is read but the agent's own files and
the kernel's; a part that fails says so in its place.
"""

from __future__ import annotations

import io
import json
import os
import platform
import socket as sockets
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpulease.errors import UsageError
from gpulease.screen import safe
from nodeagent import __version__
from nodeagent import config as settings
from nodeagent.adapters import machine
from nodeagent.adapters.bounded import Bounded
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.adapters.cgroup_search import all_paths
from nodeagent.adapters.clock import SystemClock
from nodeagent.cli.asking import ask
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.lease import Lease
from nodeagent.domain.masking import MASKED, Mask
from nodeagent.ledger.reader import LedgerReader
from nodeagent.wiring.state import LEDGER, stem

SECONDS = 20.0  # for one part
MOST_BYTES = 4 << 20  # of one part; the whole file is below a dozen times that
MOST_LEASES, MOST_CGROUPS, MOST_LINES = 1000, 500, 4000
_CGROUP_FILES = ("cgroup.events", "dmem.max", "dmem.min", "dmem.current", "memory.max", "pids.current")
_DRIVER = ("amdgpu", "kfd", "[drm", "dmem", "pcieport", "AER", "IOMMU", "iommu")
_DMESG = ("/usr/bin/dmesg", "/bin/dmesg")
Part = Callable[[], str | bytes]


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the parts come from."""

    config_path: Path
    config: settings.Config
    mask: Mask
    full: bool
    events: int

    @classmethod
    def of(
        cls, config_path: Path | None, socket: Path | None, state_dir: Path | None, *, events: int, full: bool
    ) -> Sources:
        """Raises UsageError: the agent behind *socket* has another ledger, and nobody says where."""
        path = config_path or settings.DEFAULT_PATH
        config = settings.check(path)[0]
        if socket is not None and socket != config.server.socket and state_dir is None:
            raise UsageError(f"--state-dir: say it beside --socket {socket}: leases are read from the ledger")
        config = config.overridden(socket=socket, state_dir=state_dir)
        return cls(path, config, Mask(off=full), full, events)

    def parts(self) -> Mapping[str, Part]:
        """By the name of the member."""
        return {
            "versions.txt": _versions,
            "config.toml": lambda: settings.render(self.config),
            "doctor.txt": self._doctor,
            "node.json": lambda: self._told("/v1/node"),
            "devices.json": lambda: self._told("/v1/devices"),
            "leases.json": partial(self._read, self._leases),
            "events.jsonl": partial(self._read, self._events),
            "quarantine.json": partial(self._read, self._quarantine),
            "kernel.txt": self._kernel_log,
            "cgroups.txt": self._cgroups,
            "machine.json": _machine,
        }

    def _told(self, target: str) -> str:
        return _json(ask(self.config.server.socket, "GET", target, timeout=5))

    def _doctor(self) -> str:
        from nodeagent.cli.doctor import line
        from nodeagent.cli.doctoring import findings_of

        server, state = self.config.server.socket, self.config.state.directory
        path = self.config_path if self.config_path.exists() else None
        findings = findings_of(path, socket=server, state_dir=state)
        return "\n".join(self.mask.text(line(one)) for one in findings)

    def _read(self, part: Callable[[LedgerReader], str]) -> str:
        path = self.config.state.directory / LEDGER
        if not path.is_file():
            raise OutsideFault(path, "no such ledger")
        reader = LedgerReader(path, SystemClock())
        try:
            return part(reader)
        finally:
            reader.close()

    def _leases(self, ledger: LedgerReader) -> str:
        """Those that live, and those of which a slice is not clean."""
        ids = sorted(ledger.present())[-MOST_LEASES:]
        found = (ledger.lease(one) for one in ids)
        return _json([self._lease(lease) for lease in found if lease is not None])

    def _lease(self, lease: Lease) -> Mapping[str, Any]:
        """Without its environment; the holder's id is a user's word."""
        told = {
            "id": lease.id,
            "state": lease.state,
            "kind": lease.holder.kind,
            "holder": lease.holder.id if self.full else MASKED,
            "uid": lease.holder.uid,
            "anchor": lease.anchor.kind,
            "armed": lease.anchor.armed,
            "boot_id": lease.boot_id,
            "created_at": lease.created_at,
            "reason": lease.reason,
            "observed": lease.observed,
            "guarantee": {
                "memory": lease.guarantee.memory,
                "compute": lease.guarantee.compute,
                "visibility": lease.guarantee.visibility,
            },
            "slices": [
                {
                    "device": held.placed.device,
                    "epoch": held.placed.epoch,
                    "cus": str(held.placed.cus),
                    "vram_bytes": held.placed.vram_bytes,
                    "queue_slots": held.placed.queue_slots,
                    "state": held.state,
                }
                for held in lease.slices
            ],
        }
        shown: Mapping[str, Any] = self.mask.value(told)
        return shown

    def _events(self, ledger: LedgerReader) -> str:
        found = ledger.events(limit=self.events, newest=True) if self.events else ()
        lines = []
        for one in found:
            told = {"id": one.id, "at": one.at, "kind": one.kind, "uid": one.uid, "lease": one.lease}
            told |= {"device": one.device, "reason": one.reason, "data": one.data}
            lines.append(json.dumps(self.mask.value(told), ensure_ascii=True))
        return "\n".join(lines)

    def _quarantine(self, ledger: LedgerReader) -> str:
        """The journals of leases that failed: what was proved, and what was in the way."""
        ids = sorted({held.lease for held in ledger.quarantined()})[-MOST_LEASES:]
        journals = ledger.journals(ids)
        return _json(
            {
                str(lease): [
                    {"kind": one.kind, "state": one.state, "evidence": self.mask.value(one.evidence)}
                    for one in journal
                ]
                for lease, journal in journals.items()
            }
        )

    def _kernel_log(self) -> str:
        program = next((path for path in _DMESG if os.access(path, os.X_OK)), None)
        if program is None:
            raise OutsideFault("dmesg", f"is in none of {', '.join(_DMESG)}")
        done = subprocess.run(
            [program, "--ctime"], capture_output=True, timeout=SECONDS / 2, check=False, env={"LC_ALL": "C"}
        )
        if done.returncode:
            raise OutsideFault(program, done.stderr.decode(errors="replace").strip()[:200])
        lines = done.stdout.decode(errors="replace").splitlines()
        mine = [line for line in lines if any(word in line for word in _DRIVER)][-MOST_LINES:]
        return "\n".join(safe(self.mask.text(line)) for line in mine)

    def _cgroups(self) -> str:
        """The agent's own cgroups, wherever they are, and what the kernel says of them."""
        mount, mine = find_mount(), stem(self.config.state.directory)
        if mount is None:
            raise OutsideFault("/proc/self/mountinfo", "no cgroup2 mount")
        ours = (path for path in all_paths(mount) if path.rpartition("/")[2].startswith(mine))
        lines: list[str] = []
        for _, path in zip(range(MOST_CGROUPS), ours, strict=False):
            # Users name cgroups of their own, like ours too.
            lines += [f"== {safe(self.mask.text(path))}", *_figures(mount / path[1:])]
        return "\n".join(lines)


def write(sources: Sources, output: Path | None) -> tuple[Path, Mapping[str, str]]:
    """Gather the parts into a new file; its path, and of each part that failed why.

    Raises:
        OutsideFault: it cannot be made: it is there, or others could swap it.
    """
    path = output or Path(f"nodeagent-report-{_host()}-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    descriptor = _fresh(path)
    failed: dict[str, str] = {}
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, part in sources.parts().items():
            content, why = _bounded(part)
            if why is not None:
                failed[name] = why
            _add(archive, name, content)
    return path, failed


def _bounded(part: Part) -> tuple[bytes, str | None]:
    """What *part* gives, or why not in its place. Whatever it raises, the others have their turn."""
    try:
        given = Bounded[str | bytes](SECONDS).call(part)
    except Exception as fault:
        why = f"FAILED: {fault}"
        return why.encode(errors="replace"), why
    if given is None:
        why = f"FAILED: took longer than {SECONDS:.0f} s"
        return why.encode(), why
    content = given.encode(errors="replace") if isinstance(given, str) else given
    if len(content) > MOST_BYTES:
        content = content[:MOST_BYTES] + b"\n... cut\n"
    return content, None


def _fresh(path: Path) -> int:
    """A new file, which nobody else can read, in a directory where nobody else could put another there."""
    parent = path.parent
    try:
        status = parent.stat()
        shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
        if shared or status.st_uid not in (0, os.geteuid()):
            raise OutsideFault(parent, "others can write here: name a file in a directory of your own by -o")
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as fault:
        raise OutsideFault(path, str(fault.strerror)) from fault


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(f"nodeagent-report/{name}")
    member.size, member.mode, member.mtime = len(content), 0o600, int(time.time())
    archive.addfile(member, io.BytesIO(content))


def _versions() -> str:
    facts = {
        "nodeagent": __version__,
        "python": sys.version.split()[0],
        "kernel": platform.release(),
        "machine": platform.machine(),
        "amdgpu": _first_line("/sys/module/amdgpu/version"),
        "rocm": _first_line("/opt/rocm/.info/version"),
        "os": _first_line("/etc/os-release", "PRETTY_NAME="),
    }
    return "\n".join(f"{name} {value}" for name, value in facts.items())


def _first_line(path: str, begin: str = "") -> str:
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            text = file.read(4096)
    except OSError as fault:
        return f"({fault.strerror})"
    return next((line for line in text.splitlines() if line.startswith(begin)), "")


def _machine() -> bytes:
    with tempfile.TemporaryDirectory(prefix="nodeagent-report-") as private:
        path = Path(private) / "machine.json"
        machine.dump(machine.capture(Path("/")), path)
        return path.read_bytes()


def _figures(directory: Path) -> Iterable[str]:
    for name in _CGROUP_FILES:
        try:
            with (directory / name).open(encoding="ascii", errors="replace") as file:
                yield f"{name}: {file.read(4096).strip()!r}"
        except OSError:
            continue  # the controller is not on there


def _host() -> str:
    return "".join(one for one in sockets.gethostname() if one.isalnum() or one in "-_")[:64] or "node"


def _json(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=True)
