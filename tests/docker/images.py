"""Tiny images of this machine's and older C libraries, without a registry: archives for `import`.

All but `busybox` have a program `take` of their C library: `glibc`, with a shell and busybox, `musl`, `old`,
a glibc of years ago, and `static`, which loads none.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

from tests.hook.userland import cache, floor
from tests.slurm.space import ROOT

SOURCE = ROOT / "tests/slurm/containers/take.c"
PLACES = ("dev", "proc", "sys", "etc", "run", "tmp", "root")
TAKE = "bin/take"
APPLETS = (
    "sh",
    "cat",
    "echo",
    "env",
    "grep",
    "id",
    "kill",
    "ls",
    "ps",
    "setsid",
    "sleep",
    "stat",
    "true",
    "wc",
)
LOADER, LIBC = "lib64/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu/libc.so.6"
MUSL = "lib/ld-musl-x86_64.so.1"
OLD = "bullseye"


def glibc(root: Path) -> None:
    """This machine's glibc, busybox and `take`."""
    _busybox(root)
    _compile(root / TAKE, "gcc", *floor(root / "tmp"))
    shutil.rmtree(root / "tmp/floor")


def musl(root: Path) -> None:
    """This machine's musl, and `take`."""
    _copy(Path("/usr/lib/x86_64-linux-musl/libc.so"), root / MUSL)
    _compile(root / TAKE, "musl-gcc")


def static(root: Path) -> None:
    """`take` alone, linked against no library."""
    _compile(root / TAKE, "musl-gcc", "-static")


def old(root: Path) -> None:
    """A glibc of years ago, and `take`; needs what `make userlands` unpacks."""
    libraries = cache() / OLD / "usr/lib/x86_64-linux-gnu"
    _copy(libraries / "ld-linux-x86-64.so.2", root / LOADER)
    _copy(libraries / "libc.so.6", root / LIBC)
    _compile(root / TAKE, "gcc", *floor(root / "tmp"))
    shutil.rmtree(root / "tmp/floor")


def busybox(root: Path) -> None:
    _busybox(root)


IMAGES: dict[str, Callable[[Path], None]] = {
    "glibc": glibc,
    "musl": musl,
    "static": static,
    "old": old,
    "busybox": busybox,
}


def missing(name: str) -> str | None:
    """Why an image cannot be made here."""
    if name == "old" and not (cache() / OLD).exists():
        return "needs the root of an old release: make userlands"
    programs = {"busybox": ("busybox",), "glibc": ("busybox", "gcc"), "old": ("gcc",)}.get(
        name, ("musl-gcc",)
    )
    lacks = next((program for program in programs if shutil.which(program) is None), None)
    return f"needs {lacks}: make test-docker installs it" if lacks else None


def archive(name: str, directory: Path) -> Path:
    """The archive of an image, made once in *directory*."""
    made = directory / f"{name}.tar"
    if not made.exists():
        root = directory / name
        for place in PLACES:
            (root / place).mkdir(parents=True)
        (root / "bin").mkdir()
        IMAGES[name](root)
        with tarfile.open(made, "w") as file:
            file.add(root, ".", filter=_of_root)
    return made


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    return entry


def _busybox(root: Path) -> None:
    program = shutil.which("busybox")
    assert program is not None
    shutil.copy(program, root / "bin/busybox")
    words = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout.split()
    for library in (Path(word) for word in words if word.startswith("/")):
        _copy(library, root / str(library).lstrip("/"))
    for applet in APPLETS:
        (root / "bin" / applet).symlink_to("busybox")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source.resolve(), target)


def _compile(program: Path, compiler: str, *flags: str) -> None:
    subprocess.run([compiler, "-O1", "-o", program, SOURCE, *flags], check=True)
