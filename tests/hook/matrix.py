"""Where the hook is loaded and which calls it sees: C library by way of loading by way of calling.

What is written here is what test_loading.py asserts, and what docs/hook.md shows (``make enforcement`` writes
it there). What the hook misses is part of it: such programs need the supervisor or the kernel's own limit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hook.md"
BEGIN, END = "<!-- matrix: begin -->\n", "<!-- matrix: end -->\n"
THIS_MACHINE = "here"


@dataclass(frozen=True, slots=True)
class Release:
    """A Debian release as `userlands` makes its root: the versions of its two C libraries."""

    name: str
    glibc: str
    musl: str
    moving: bool = False  # newer versions may have come since

    def has(self, glibc: str, musl: str) -> bool:
        """Whether these are its versions."""
        if self.moving:
            return number(glibc) >= number(self.glibc) and number(musl) >= number(self.musl)
        return (glibc, musl) == (self.glibc, self.musl)


def number(version: str) -> tuple[int, ...]:
    """`2.36` as (2, 36), for comparing."""
    return tuple(map(int, version.split(".")))


RELEASES = (
    Release("bullseye", "2.31", "1.2.2"),
    Release("bookworm", "2.36", "1.2.3"),
    Release("trixie", "2.41", "1.2.5"),
    Release("sid", "2.43", "1.2.6", moving=True),
)


@dataclass(frozen=True, slots=True)
class Way:
    """A way of calling. Whether the hook sees it, by what is called so: None where there is no such way.

    *ioctl* is ``ioctl()`` itself; *library* is a function of one that calls it by linkage, as ROCm's do.
    """

    name: str
    title: str
    ioctl: bool | None
    library: bool | None
    musl: bool = True  # there, too
    bare: bool = False  # *library* is loaded by the plugin, not by the program

    def seen(self, target: str) -> bool | None:
        return self.ioctl if target == "ioctl" else self.library


WAYS = (
    Way("plt", "linkage", True, True),
    Way("got", "linkage without PLT (`-fno-plt`)", True, True),
    Way("table", "a table of functions in data", True, True),
    Way("dlsym_default", "`dlsym(RTLD_DEFAULT)`", True, True),
    Way("dlopen", "a plugin opened by `dlopen`, which calls by linkage", True, True, bare=True),
    Way("dlsym_handle", "`dlsym` with the handle of the library that has it", False, True),
    Way("dlvsym", "`dlvsym` with that handle", False, True, musl=False),
    Way("deepbind", "a plugin opened with `RTLD_DEEPBIND`", False, True, musl=False),
    Way("deepbind_all", "the same, and it brings the library with it", None, False, musl=False, bare=True),
    Way("dlmopen", "a plugin in a namespace of its own (`dlmopen`)", False, False, musl=False, bare=True),
    Way("static", "a static program", False, None),
    Way("syscall", "a raw system call", False, None),
)
TARGETS = ("ioctl", "library")

# How the hook gets into a program, and the C libraries that heed it. LD_AUDIT wants a library made for it.
LOADING = {
    "LD_PRELOAD": {"glibc", "musl"},
    "ld.so.preload": {"glibc"},
    "LD_AUDIT": set(),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One program's fate."""

    libc: str
    loading: str
    target: str
    way: Way

    @property
    def seen(self) -> bool:
        """Whether the hook refuses what is over the limit."""
        return self.libc in LOADING[self.loading] and bool(self.way.seen(self.target))

    def __str__(self) -> str:
        return f"{self.libc}-{self.loading}-{self.target}-{self.way.name}"


def cells() -> Iterator[Cell]:
    """All there are. Where the hook is never loaded, linkage stands for every way of calling."""
    for loading, heeded in LOADING.items():
        for libc in ("glibc", "musl"):
            for way in WAYS if libc in heeded else WAYS[:1]:
                for target in TARGETS:
                    if way.seen(target) is not None and (way.musl or libc == "glibc"):
                        yield Cell(libc, loading, target, way)


def table() -> str:
    """The tables of the page."""
    words = {True: "seen", False: "missed", None: ""}
    lines = ["| Debian | glibc | musl |", "| --- | --- | --- |"]
    for release in RELEASES:
        later = " or newer" if release.moving else ""
        lines.append(f"| {release.name} | {release.glibc}{later} | {release.musl}{later} |")
    lines += ["", "| Loaded by | glibc | musl |", "| --- | --- | --- |"]
    for loading, heeded in LOADING.items():
        name = "/etc/ld.so.preload" if loading == "ld.so.preload" else loading
        glibc, musl = ("as below" if libc in heeded else "never loaded" for libc in ("glibc", "musl"))
        lines.append(f"| `{name}` | {glibc} | {musl} |")
    lines += ["", "| How it is called | `ioctl` itself | a library that calls `ioctl` by linkage |"]
    lines += ["| --- | --- | --- |"]
    for way in WAYS:
        title = way.title if way.musl else f"{way.title} (glibc only)"
        lines.append(f"| {title} | {words[way.ioctl]} | {words[way.library]} |")
    return "\n".join(lines) + "\n"


def shown(page: str) -> str:
    """What stands between the page's markers."""
    return page.partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    if "--write" in sys.argv:
        PAGE.write_text(text.replace(BEGIN + shown(text) + END, BEGIN + table() + END), encoding="utf-8")
    elif shown(text) != table():
        sys.exit("docs/hook.md has fallen behind the tests: run `make enforcement`")
