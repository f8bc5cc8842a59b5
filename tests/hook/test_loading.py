"""Where the hook loads and which calls it sees: each C library, way of loading and way of calling, as it is.

What it misses is stated here, too: those programs need the supervisor or the kernel's own limit.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from nodeagent.adapters.hook_files import LIBRARY

from .conftest import HERE, MIB, Node

LIBCS = {"glibc": ("gcc", "libc.so.6"), "musl": ("musl-gcc", f"libc.musl-{platform.machine()}.so.1")}
SEEN = {"plt", "table", "dlsym_default"}
# A symbol looked up in one library, or in a namespace of its own, is not the preloaded one.
MISSED = {"dlsym_handle", "dlvsym", "deepbind", "dlmopen", "syscall"}


def build(node: Node, libc: str, *flags: str) -> Path:
    """The test program for *libc*, and its plugin beside it."""
    compiler, soname = LIBCS[libc]
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    program = node.directory / f"program-{libc}"
    define = f'-DLIBC="{soname}"'
    source = str(HERE / "program.c")
    subprocess.run([compiler, "-O1", define, *flags, "-o", str(program), source, "-ldl"], check=True)
    if "-static" not in flags:
        shared = ["-fPIC", "-shared", "-DPLUGIN", "-o", str(node.directory / "plugin.so")]
        subprocess.run([compiler, define, *shared, source], check=True)
    return program


def outcome(node: Node, program: Path, way: str, *env: str) -> str:
    words = node.command("env", *env, str(program), way, str(node.directory / "plugin.so"))
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=20).stdout.strip()


@pytest.mark.parametrize("loading", ["LD_PRELOAD", "ld.so.preload"])
@pytest.mark.parametrize("way", sorted(SEEN | MISSED))
@pytest.mark.way_out(
    "dlsym by handle, dlvsym, RTLD_DEEPBIND, dlmopen, a raw system call",
    tier="hook",
    outcome="not held; calls by linkage, function table and RTLD_DEFAULT are refused over the limit",
)
def test_on_glibc(node: Node, loading: str, way: str) -> None:
    """Calls by linkage and by RTLD_DEFAULT are seen; those that go around the search order are not."""
    node.lease(10 * MIB)
    program = build(node, "glibc")
    env = [f"LD_PRELOAD={node.library}"] if loading == "LD_PRELOAD" else ["-i"]
    if loading == "ld.so.preload":
        (node.root / "etc/ld.so.preload").write_text(f"{node.library}\n")
    assert outcome(node, program, way, *env) == ("denied" if way in SEEN else "allocated")


@pytest.mark.parametrize("way", ["plt", "table", "dlsym_default", "syscall"])
def test_on_musl(node: Node, way: str) -> None:
    """The same file works beside musl, where only LD_PRELOAD loads it."""
    node.lease(10 * MIB)
    program = build(node, "musl")
    assert outcome(node, program, way, f"LD_PRELOAD={node.library}") == (
        "denied" if way in SEEN else "allocated"
    )


@pytest.mark.way_out(
    "a musl program where only /etc/ld.so.preload names the hook",
    tier="hook",
    outcome="not held; LD_PRELOAD holds it",
)
def test_musl_has_no_preload_file(node: Node) -> None:
    """musl does not read /etc/ld.so.preload: such programs are missed."""
    node.lease(10 * MIB)
    program = build(node, "musl")
    (node.root / "etc/ld.so.preload").write_text(f"{node.library}\n")
    assert outcome(node, program, "plt", "-i") == "allocated"


@pytest.mark.parametrize("libc", sorted(LIBCS))
@pytest.mark.way_out("a static program", tier="hook", outcome="not held: nothing is loaded into it")
def test_static_programs_are_missed(node: Node, libc: str) -> None:
    """Nothing is loaded into a static program."""
    node.lease(10 * MIB)
    program = build(node, libc, "-static", "-DSTATIC")
    assert outcome(node, program, "plt", f"LD_PRELOAD={node.library}") == "allocated"


def test_the_library_depends_on_nothing() -> None:
    """It needs no library, asks for no symbol's version, and shows ioctl() alone."""
    if not LIBRARY.is_file() or not shutil.which("readelf"):
        pytest.skip("needs the library and readelf")
    dump = subprocess.run(
        ["readelf", "-dVW", "--dyn-syms", LIBRARY], capture_output=True, text=True, check=True
    )
    lines = dump.stdout.splitlines()
    assert not [line for line in lines if "(NEEDED)" in line or "(VERNEED)" in line or "(TEXTREL)" in line]
    symbols = [line.split() for line in lines if " UND " in line or " DEFAULT " in line]
    exported = {fields[7] for fields in symbols if fields[6] != "UND"}
    weak = {(fields[7], fields[4]) for fields in symbols if fields[6] == "UND" and len(fields) > 7}
    assert exported == {"ioctl"}
    assert weak == {("__errno_location", "WEAK"), ("getauxval", "WEAK")}
