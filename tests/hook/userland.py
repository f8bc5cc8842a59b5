"""Programs in the userland of another Debian release, on a node of the hook's tests."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .conftest import HERE, Node
from .fake_kernel import KFD_ALLOC
from .matrix import THIS_MACHINE, Cell

SOURCES = HERE / "loading"
COMPILERS = {"glibc": "gcc", "musl": "musl-gcc"}
# What dlopen() knows the C library by.
SONAMES = {"glibc": "libc.so.6", "musl": f"libc.musl-{platform.machine()}.so.1"}
# Over the release's root, which stays as it is, one with this node's devices, leases and programs in it.
ENTER = """
set -e
mkdir "$1/up/root" "$1/up/rootwork"
mount -t overlay none -o "lowerdir=$2,upperdir=$1/up/root,workdir=$1/up/rootwork" /mnt
for part in /dev /proc /run /etc/gpulease "$1"; do
    mkdir -p "/mnt$part" && mount --rbind "$part" "/mnt$part"
done
"""


def cache() -> Path:
    """Where `userlands` keeps the roots."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("NODEAGENT_CACHE") or Path(base) / "nodeagent") / "libc"


def build(directory: Path) -> None:
    """The programs and their libraries, for each C library in a folder of its own, once for all userlands."""
    for libc in COMPILERS:
        made = directory / libc
        made.mkdir()
        link = floor(made) if libc == "glibc" else []
        shared = ["-shared", "-fPIC"]
        versions = f"-Wl,--version-script={SOURCES / 'runtime.map'}"
        compiled(libc, made / "libruntime.so", "runtime.c", *shared, versions, *link)
        compiled(libc, made / "libplugin.so", "plugin.c", *shared, "-lruntime", *link)
        compiled(libc, made / "program", "program.c", "-lruntime", *link)
        compiled(libc, made / "bare", "program.c", "-DBARE", *link)
        compiled(libc, made / "static", "program.c", "-DSTATIC", "-static")


def compiled(libc: str, output: Path, source: str, *flags: str) -> None:
    """One of them. It finds its libraries beside itself."""
    define, rpath = f'-DLIBC="{SONAMES[libc]}"', "-Wl,-rpath,$ORIGIN,--no-as-needed"
    command = [COMPILERS[libc], "-O1", define, f"-L{output.parent}", rpath, "-o", output, SOURCES / source]
    subprocess.run([*command, *flags], check=True)


def floor(directory: Path) -> list[str]:
    """Words that link against the oldest versions of glibc's symbols, instead of this machine's glibc."""
    made = directory / "floor"
    made.mkdir()
    for name, *flags in (("libc.so.6",), ("libdl.so.2", "-DLIBDL")):
        options = f"-Wl,-soname,{name},--version-script={SOURCES / 'floor.map'}"
        command = ["gcc", "-shared", "-nostdlib", options, *flags, "-o", made / name, SOURCES / "floor.S"]
        subprocess.run(command, check=True)
    return ["-nodefaultlibs", str(made / "libc.so.6"), str(made / "libdl.so.2")]


@dataclass(frozen=True, slots=True)
class Userland:
    """A root directory in a node's mounts."""

    node: Node
    root: str

    @classmethod
    def enter(cls, node: Node, name: str) -> Userland:
        """This machine's, or a release's: its root must be there, and the node must have its lease."""
        if name == THIS_MACHINE:
            return cls(node, "/")
        words = node.command("sh", "-c", ENTER, "sh", str(node.directory), str(cache() / name))
        subprocess.run(words, check=True)
        return cls(node, "/mnt")

    @property
    def path(self) -> Path:
        """The root, from outside."""
        return self.node.root / self.root.lstrip("/")

    def run(self, program: Path | str, *arguments: str, env: tuple[str, ...] = ()) -> str:
        """Its output: of a program that is in the node's directory, or in this root."""
        words = self.node.command("env", "-i", *env, "/usr/sbin/chroot", self.root, str(program), *arguments)
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
        return done.stdout.strip() or done.stderr.strip()

    def outcome(self, cell: Cell) -> tuple[str, int]:
        """What the cell's program says, and how often the kernel was asked for memory."""
        where = self.node.directory / cell.libc
        program = "bare" if cell.way.bare and cell.target == "library" else "program"
        program, way = ("static", "plt") if cell.way.name == "static" else (program, cell.way.name)
        before = self.node.kernel.calls[KFD_ALLOC]
        preload = self.path / "etc/ld.so.preload"
        by_file = cell.loading == "ld.so.preload"
        if by_file:
            preload.write_text(f"{self.node.library}\n")
        env = () if by_file else (f"{cell.loading}={self.node.library}",)
        try:
            said = self.run(where / program, cell.target, way, env=env)
        finally:
            preload.unlink(missing_ok=True)
        return said, self.node.kernel.calls[KFD_ALLOC] - before

    def glibc(self) -> str:
        """Its version, such as 2.36."""
        text = next(self.path.glob("lib/*/libc.so.6")).read_bytes()
        return re.search(rb"stable release version (\d+\.\d+)", text)[1].decode()

    def musl(self) -> str:
        """Its version, such as 1.2.3, of which it tells who starts it alone."""
        said = self.run(f"/lib/ld-musl-{platform.machine()}.so.1")
        return re.search(r"Version (\S+)", said)[1]


def unbuildable() -> str | None:
    """Why the programs cannot be compiled here."""
    missing = [compiler for compiler in COMPILERS.values() if not shutil.which(compiler)]
    return f"needs {' and '.join(missing)}" if missing else None
