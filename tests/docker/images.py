"""Tiny images without a registry: archives for `import`, made of what this machine has."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fakekfd.newer import newer_root
from tests.hook.userland import cache, floor
from tests.slurm.space import ROOT

HERE = Path(__file__).parent
PLACES = ("bin", "dev", "proc", "sys", "etc", "run", "tmp", "root")
APPLETS = ["sh", "cat", "echo", "env", "grep", "id", "kill", "ls", "ps", "setsid", "sleep", "stat", "true"]
LIBRARIES = "usr/lib/x86_64-linux-gnu"
LOADER = "lib64/ld-linux-x86-64.so.2"
HEADER = Path("/usr/include/hip/hip_runtime_api.h")
OLD = cache() / "bullseye"


def busybox(root: Path) -> None:
    """This machine's glibc and busybox."""
    _busybox(root, Path("/"))


def glibc(root: Path) -> None:
    """The same, and `take`, which asks KFD for VRAM."""
    _busybox(root, Path("/"))
    _take(root, "gcc", *floor(root / "tmp"))


def old(root: Path) -> None:
    """A glibc of years ago, and `take`."""
    _copy(OLD / LIBRARIES / "ld-linux-x86-64.so.2", root / LOADER)
    _copy(OLD / LIBRARIES / "libc.so.6", root / "lib/x86_64-linux-gnu/libc.so.6")
    _take(root, "gcc", *floor(root / "tmp"))


def musl(root: Path) -> None:
    """This machine's musl, and `take`."""
    _copy(Path("/usr/lib/x86_64-linux-musl/libc.so"), root / "lib/ld-musl-x86_64.so.1")
    _take(root, "musl-gcc")


def static(root: Path) -> None:
    """`take`, and other programs that load no library: `gpu` of tests/supervisor, and `refused`."""
    _take(root, "musl-gcc", "-static")
    _compile(root / "bin/refused", "musl-gcc", HERE / "refused.c", "-static")
    _compile(root / "bin/gpu", "musl-gcc", ROOT / "tests/supervisor/gpu.c", "-static", "-pthread")


def rocm(root: Path) -> None:
    """The newer ROCm's libraries, busybox, and as `hip` the HIP program of tests/rocm."""
    newer = newer_root()
    assert newer is not None
    _busybox(root, newer)
    hip = f"/{LIBRARIES}/libamdhip64.so.5"
    for library in (hip, *_needed(newer, hip)):
        _copy(newer / library.lstrip("/"), root / "lib/x86_64-linux-gnu" / Path(library).name)
    _compile(root / "bin/hip", "gcc", ROOT / "tests/rocm/program.c", "-lamdhip64")


@dataclass(frozen=True)
class Image:
    """What makes an image's root in an empty directory, and what that needs: programs, and files."""

    make: Callable[[Path], None]
    programs: tuple[str, ...]
    files: tuple[Path, ...] = ()

    def missing(self) -> str | None:
        """Why it cannot be made here."""
        lacks = [name for name in self.programs if shutil.which(name) is None]
        lacks += [str(path) for path in self.files if not path.exists()]
        return f"needs {lacks[0]}: make test-docker gets it" if lacks else None

    def archive(self, directory: Path) -> Path:
        """Its archive, made once in *directory*."""
        made = directory / f"{self.make.__name__}.tar"
        if not made.exists():
            root = directory / self.make.__name__
            for place in PLACES:
                (root / place).mkdir(parents=True)
            self.make(root)
            with tarfile.open(made, "w") as file:
                file.add(root, ".", filter=_of_root)
            shutil.rmtree(root)
        return made


IMAGES = {
    "busybox": Image(busybox, ("busybox",)),
    "glibc": Image(glibc, ("busybox", "gcc")),
    "old": Image(old, ("gcc",), (OLD,)),
    "musl": Image(musl, ("musl-gcc",)),
    "static": Image(static, ("musl-gcc",)),
    "rocm": Image(rocm, ("busybox", "gcc"), (HEADER, newer_root() or Path("the newer ROCm's chroot"))),
}


def _busybox(root: Path, system: Path) -> None:
    """This machine's busybox, with the libraries of the Debian *system*."""
    program = shutil.which("busybox")
    assert program is not None
    shutil.copy(program, root / "bin/busybox")
    for library in _needed(Path("/"), program):
        _copy(system / library.lstrip("/"), root / library.lstrip("/"))
    for applet in APPLETS:
        (root / "bin" / applet).symlink_to("busybox")


def _needed(system: Path, binary: str) -> list[str]:
    """The libraries that a program or library of *system* loads, and the loader."""
    words = ["/usr/sbin/chroot", system, "ldd", binary]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout  # fails for a static one
    return [word for word in said.split() if word.startswith("/")]


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source.resolve(), target)


def _take(root: Path, compiler: str, *flags: str) -> None:
    _compile(root / "bin/take", compiler, ROOT / "tests/slurm/containers/take.c", *flags)
    shutil.rmtree(root / "tmp/floor", ignore_errors=True)


def _compile(program: Path, compiler: str, source: Path, *flags: str) -> None:
    subprocess.run([compiler, "-O1", "-o", program, source, *flags], check=True)


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    return entry
