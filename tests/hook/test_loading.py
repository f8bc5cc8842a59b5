"""The hook beside each C library, loaded each way, called each way: matrix.py says what comes of it."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache as once
from pathlib import Path

import pytest

from nodeagent.adapters.hook_files import LIBRARY

from .conftest import MIB, running, unusable
from .matrix import PAGE, RELEASES, THIS_MACHINE, WAYS, Cell, Release, cells, number, shown, table
from .userland import COMPILERS, Userland, build, cache, unbuildable

pytestmark = pytest.mark.hook

OLDEST = "2.17"
# Kinds of relocation that every dynamic linker for x86-64 knows.
PLAIN = {"R_X86_64_RELATIVE", "R_X86_64_GLOB_DAT", "R_X86_64_JUMP_SLO", "R_X86_64_JUMP_SLOT", "R_X86_64_64"}
USERLANDS = (THIS_MACHINE, *(release.name for release in RELEASES))
NAMED = re.compile(r"GLIBC_([0-9.]+)")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs, compiled once."""
    if reason := unbuildable():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("programs")
    build(directory)
    return directory


@pytest.fixture(scope="module")
def userland(programs: Path) -> Iterator[Callable[[str], Userland]]:
    """Userlands by name, each on a node of its own with a lease of 10 MiB."""
    if reason := unusable():
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:

        @once
        def enter(name: str) -> Userland:
            if name != THIS_MACHINE and not (cache() / name).is_dir():
                pytest.skip(f"needs the root of {name}, which tests/hook/userlands makes")
            node = stack.enter_context(running())
            for libc in COMPILERS:
                shutil.copytree(programs / libc, node.directory / libc)
            node.lease(10 * MIB)
            return Userland.enter(node, name)

        yield enter


@pytest.mark.parametrize("cell", list(cells()), ids=str)
@pytest.mark.parametrize("name", USERLANDS)
def test_each_cell(userland: Callable[[str], Userland], name: str, cell: Cell) -> None:
    """What the hook sees never reaches the kernel over the limit; what it misses does."""
    assert userland(name).outcome(cell) == (("denied", 0) if cell.seen else ("allocated", 1))


@pytest.mark.parametrize("libc", sorted(COMPILERS))
@pytest.mark.parametrize("name", USERLANDS)
def test_the_variable_is_read_beside_each_library(
    userland: Callable[[str], Userland], name: str, libc: str
) -> None:
    """Before the program runs: named limits that are not there are noticed, with each C library."""
    land = userland(name)
    program, aside = land.node.directory / libc / "program", land.node.fixed.with_name("aside")
    preload = f"LD_PRELOAD={land.node.library}"
    land.node.fixed.rename(aside)
    try:
        assert land.run(program, "ioctl", "plt", env=(preload,)) == "allocated"
        assert land.run(program, "ioctl", "plt", env=(preload, "GPULEASE_HOOK=/nowhere")) == "denied"
    finally:
        aside.rename(land.node.fixed)


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_the_releases_have_the_stated_versions(userland: Callable[[str], Userland], release: Release) -> None:
    """The roots hold the C libraries that the page names."""
    land = userland(release.name)
    assert release.has(land.glibc(), land.musl())


def one(loading: str, target: str, way: str, libc: str = "glibc") -> Cell:
    return next(cell for cell in cells() if str(cell) == f"{libc}-{loading}-{target}-{way}")


@pytest.mark.way_out(
    "ioctl by dlsym with libc's handle, dlvsym, RTLD_DEEPBIND, dlmopen, a raw system call",
    tier="hook",
    outcome="not held; calls by linkage, function table and RTLD_DEFAULT are refused over the limit",
)
@pytest.mark.parametrize("way", ["dlsym_handle", "dlvsym", "deepbind", "dlmopen", "syscall"])
def test_going_around_the_search_order(userland: Callable[[str], Userland], way: str) -> None:
    """A program that looks for the real ioctl() finds it, and one without ioctl() needs none."""
    assert userland(THIS_MACHINE).outcome(one("LD_PRELOAD", "ioctl", way)) == ("allocated", 1)


@pytest.mark.way_out(
    "a ROCm library brought by a plugin under RTLD_DEEPBIND, or under dlmopen",
    tier="hook",
    outcome="not held; by whatever else a program reaches such a library, it is refused over the limit",
)
@pytest.mark.parametrize("way", ["deepbind_all", "dlmopen"])
def test_libraries_in_a_scope_of_their_own(userland: Callable[[str], Userland], way: str) -> None:
    """There, libc's ioctl() comes before the preloaded one."""
    assert userland(THIS_MACHINE).outcome(one("LD_PRELOAD", "library", way)) == ("allocated", 1)


@pytest.mark.way_out(
    "a musl program where only /etc/ld.so.preload names the hook",
    tier="hook",
    outcome="not held; LD_PRELOAD holds it",
)
def test_musl_has_no_preload_file(userland: Callable[[str], Userland]) -> None:
    """musl does not read /etc/ld.so.preload: such programs are missed."""
    assert userland(THIS_MACHINE).outcome(one("ld.so.preload", "ioctl", "plt", "musl")) == ("allocated", 1)


@pytest.mark.way_out("a static program", tier="hook", outcome="not held: nothing is loaded into it")
@pytest.mark.parametrize("libc", sorted(COMPILERS))
def test_static_programs_are_missed(userland: Callable[[str], Userland], libc: str) -> None:
    """Nothing is loaded into a static program."""
    assert userland(THIS_MACHINE).outcome(one("LD_PRELOAD", "ioctl", "static", libc)) == ("allocated", 1)


def test_the_page_shows_the_matrix() -> None:
    """`make enforcement` writes the tables of docs/hook.md anew."""
    assert shown(PAGE.read_text(encoding="utf-8")) == table()


def test_the_rocm_paths_are_all_seen() -> None:
    """Calling a library is missed only where that library is loaded into a scope of its own."""
    assert {way.name for way in WAYS if way.library is False} == {"deepbind_all", "dlmopen"}


def readelf(path: Path) -> str:
    """Header, segments, dynamic section, symbols, versions and relocations."""
    if not path.is_file() or not shutil.which("readelf"):
        pytest.skip(f"needs {path.name} and readelf")
    command = ["readelf", "-hldVrW", "--dyn-syms", path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_library_depends_on_nothing() -> None:
    """It needs no library, asks for no symbol's version, and shows ioctl() alone."""
    lines = readelf(LIBRARY).splitlines()
    assert not [line for line in lines if "(NEEDED)" in line or "(VERNEED)" in line or "(TEXTREL)" in line]
    symbols = [line.split() for line in lines if " UND " in line or " DEFAULT " in line]
    exported = {fields[7] for fields in symbols if fields[6] != "UND"}
    weak = {(fields[7], fields[4]) for fields in symbols if fields[6] == "UND" and len(fields) > 7}
    assert exported == {"ioctl"}
    assert weak == {("__errno_location", "WEAK"), ("environ", "WEAK"), ("getauxval", "WEAK")}


def test_the_library_asks_nothing_new_of_the_dynamic_linker() -> None:
    """Old linkers load it, those that no test can have, too: both hash tables, plain relocations, no TLS."""
    dump = readelf(LIBRARY)
    assert re.search(r"OS/ABI:\s+UNIX - System V", dump)
    assert "(HASH)" in dump and "(GNU_HASH)" in dump
    assert not re.search(r"\((RELR|RELRSZ|FILTER|AUXILIARY|PREINIT_ARRAY)\)| TLS |IFUNC|GLIBC_", dump)
    assert set(re.findall(r"R_X86_64_\w+", dump)) <= PLAIN


@pytest.mark.parametrize("name", ["libhsakmt.so.1", "libdrm.so.2"])
def test_rocms_libraries_call_by_linkage(name: str) -> None:
    """The installed ROCm's callers of ioctl() import it by name, which is where the hook stands."""
    (kind,) = re.findall(r"(R_X86_64_\w+) .* ioctl@", readelf(Path("/usr/lib/x86_64-linux-gnu") / name))
    assert kind in PLAIN


@pytest.mark.parametrize("name", ["program", "bare", "libplugin.so", "libruntime.so"])
def test_the_programs_run_beside_the_oldest_glibc(programs: Path, name: str) -> None:
    """They name no version of glibc that 2.17 has not: the same files run in every userland."""
    versions = NAMED.findall(readelf(programs / "glibc" / name))
    assert versions and max(map(number, versions)) <= number(OLDEST)
