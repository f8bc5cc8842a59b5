"""`nodeagent audit`: takes a small lease of its own, and tries from inside to get out of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpulease
from nodeagent.domain.audit import Outcome, judge
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.guarantee import Memory

ATTEMPTS = Path(__file__).with_name("attempts.py")
VRAM = "256M"  # more than the hook keeps back, and little else
NOBODY = 65534
_SECONDS = 120.0
_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class Audit:
    """What came of one lease."""

    lease: int
    uid: int
    guarantee: Mapping[str, str]
    outcomes: list[Outcome]


def audit(
    socket: Path,
    devices: Sequence[Mapping[str, Any]],
    *,
    uid: int,
    options: Sequence[str] = (),
    dev: Path = Path("/dev"),
) -> Audit:
    """Take a lease as *uid*, with further *options* of `gpulease run`, and try each way out of it.

    Raises:
        OutsideFault: no lease was to be had, or the program in it did not come to its end.
    """
    with _place() as place:
        words = [
            *(_interpreter(uid), "-m", "gpulease", "run", "--vram", VRAM, *options, "--"),
            *(_interpreter(uid), str(place / ATTEMPTS.name), str(dev), _named(devices)),
        ]
        said = _ran(words, socket, place, uid, dev)
    return _read(said, uid)


def _read(said: str, uid: int) -> Audit:
    """What the program printed, which the user's other processes could have meddled with."""
    try:
        told = json.loads(said)
        stated = Memory(told["guarantee"]["memory"])
        return Audit(int(told["lease"]), uid, told["guarantee"], judge(stated, told["outcomes"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise OutsideFault("the attempts", f"what uid {uid}'s program printed cannot be read") from None


def ended(lease: int, state: Callable[[int], str | None]) -> str | None:
    """Why the audit's *lease* is not over yet, by its *state*; None: it is."""
    now = state(lease)
    return (
        None if now in ("released", None) else f"lease {lease} is {now}: `nodeagent journal {lease}` says why"
    )


def _named(devices: Sequence[Mapping[str, Any]]) -> str:
    """As the program takes them: one argument must not be longer than 128 KiB."""
    return json.dumps([{key: one[key] for key in ("device", "gpu_id", "render_node")} for one in devices])


@contextmanager
def _place() -> Iterator[Path]:
    """The client and the program where every user can read them, and only we can write."""
    with tempfile.TemporaryDirectory(prefix="nodeagent-audit-") as made:
        place = Path(made)
        place.chmod(0o755)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(gpulease.__file__).parent, place / "gpulease", ignore=ignored)
        shutil.copy(ATTEMPTS, place / ATTEMPTS.name)
        for path in (place / ATTEMPTS.name, *(place / "gpulease").rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield place


def _ran(words: Sequence[str], socket: Path, place: Path, uid: int, dev: Path) -> str:
    """What the program printed. Another user has the groups of the device nodes, and no other."""
    other = uid != os.geteuid()
    try:
        done = subprocess.run(
            words,
            cwd="/",
            env={
                "PATH": _PATH,
                "GPULEASE_SOCKET": str(socket),
                "PYTHONPATH": str(place),
                "PYTHONNOUSERSITE": "1",  # what the user keeps there would speak for what was tried
            },
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            user=uid if other else None,
            group=uid if other else None,
            extra_groups=_groups(dev) if other else None,
        )
    except subprocess.TimeoutExpired:
        raise OutsideFault("gpulease run", f"did not end in {_SECONDS:.0f} s, and was ended") from None
    except OSError as fault:
        raise OutsideFault(words[0], f"cannot be run as uid {uid}: {fault.strerror}") from fault
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        raise OutsideFault("gpulease run", f"{last}: nothing was tried")
    return done.stdout


def _interpreter(uid: int) -> str:
    """Ours may lie where no other user can go: the client needs any Python from 3.9 on."""
    if uid == os.geteuid():
        return sys.executable
    return shutil.which("python3", path=_PATH) or sys.executable


def _groups(dev: Path) -> list[int]:
    """The groups that the device nodes are open to, as the node's users have them."""
    found = set()
    for path in (dev / "kfd", *dev.glob("dri/renderD*")):
        try:
            found.add(path.stat().st_gid)
        except OSError:
            continue
    return sorted(found - {0})
