"""Which C library an image's program is loaded with: by its files alone, nothing of the image is run.

The rules: what the program names as its loader decides, a script's program being its interpreter; without a
program to look at, what is in the standard directories counts, and glibc before musl, which Debian ships as a
package. glibc's version is what its libc.so.6 says, else the highest ``GLIBC_2.N`` in it.
"""

from __future__ import annotations

import posixpath
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Optional, Protocol

UNKNOWN, STATIC = "unknown", "static"
HEAD_BYTES = 64 << 10  # what a program says of its loader stands near its beginning
LIBRARY_BYTES = 16 << 20
_MOST_INTERPRETERS = 4  # the kernel's own limit on scripts of scripts
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MACHINES = {"x86_64": 62, "aarch64": 183}  # elf.h: EM_X86_64, EM_AARCH64
_LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
# Patterns are compiled where they are used: most images are known, and need none.
_GLIBC = rb"GLIBC_2\.([0-9]{1,3})(?![0-9])"
_GLIBC_SAYS = rb"release version 2\.([0-9]{1,3})[., ]"
_MUSL = rb"\0(1\.[0-9]{1,2}\.[0-9]{1,3})[\0-]"
# They only start what they are given, and are often static where all else is not.
_INITS = frozenset({"catatonit", "docker-init", "dumb-init", "tini", "tini-static"})


class Files(Protocol):
    """An image's files, by absolute path, behind links that stay in the image."""

    def read(self, path: str, most: int) -> Optional[bytes]:
        """The first *most* bytes of a file; None where there is no such."""


def program_of(words: Sequence[str]) -> Optional[str]:
    """The program that *words* (entry point and arguments) run in the end; None of none."""
    left = list(words)
    while left and posixpath.basename(left[0]) in _INITS:
        left = left[left.index("--") + 1 :] if "--" in left else [one for one in left[1:] if one[:1] != "-"]
    return left[0] if left else None


def libc_of(files: Files, program: Optional[str], path: Optional[str], machine: str) -> str:
    """``glibc-2.36``, ``musl-1.2.5``, ``musl``, ``static`` or ``unknown`` for *program* in an image.

    *path* is the image's PATH, *machine* the host's (``x86_64``): what is made for another is unknown.
    """
    head = _head(files, program, path or _DEFAULT_PATH) if program else None
    for _ in range(_MOST_INTERPRETERS):
        interpreter = _interpreter(head) if head else None
        if interpreter is None:
            break
        head = _head(files, interpreter, path or _DEFAULT_PATH)
    if not head or head[:2] == b"#!":
        return _of_image(files, machine)
    return _of_program(files, head, machine)


def _head(files: Files, program: str, path: str) -> Optional[bytes]:
    if "/" in program:
        return files.read(posixpath.join("/", program), HEAD_BYTES)
    found = (files.read(posixpath.join("/", one, program), HEAD_BYTES) for one in path.split(":") if one)
    return next(filter(None, found), None)


def _interpreter(head: bytes) -> Optional[str]:
    """The program that runs a script; None of a program. ``env`` looks its argument up in PATH."""
    if head[:2] != b"#!":
        return None
    words = head[2:].split(b"\n", 1)[0].decode("utf-8", "replace").split()
    if words and posixpath.basename(words[0]) == "env":
        words = [one for one in words[1:] if one[0] != "-" and "=" not in one]
    return words[0] if words else None


def _of_program(files: Files, head: bytes, machine: str) -> str:
    if head[:5] != b"\x7fELF\2" or _machine(head) != _MACHINES.get(machine):
        return UNKNOWN
    try:
        loader = loader_of(head)
    except ValueError:
        return UNKNOWN
    if loader is None:
        return STATIC
    if posixpath.basename(loader).startswith("ld-musl-"):
        return _musl(files.read(loader, LIBRARY_BYTES))
    standard = posixpath.dirname(loader) in set(_directories(machine))
    return _glibc(files, machine) if standard and posixpath.basename(loader) == _LOADERS[machine] else UNKNOWN


def _machine(head: bytes) -> int:
    return int.from_bytes(head[18:20], "little")


def loader_of(head: bytes) -> Optional[str]:
    """What PT_INTERP of a 64-bit little-endian ELF file names; None of a static one.

    Raises:
        ValueError: *head* does not reach as far as the file says that it goes.
    """
    try:
        (table,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        for number in range(count):
            kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", head, table + size * number)
            if kind == 3:  # PT_INTERP
                return _name(head[offset : offset + length])
    except (struct.error, OverflowError):
        raise ValueError("its table of segments lies elsewhere") from None
    return None


def _name(field: bytes) -> str:
    name, end, _ = field.partition(b"\0")
    if not name or not end:
        raise ValueError("the name of its loader is not there")
    return name.decode("utf-8", "replace")


def _of_image(files: Files, machine: str) -> str:
    found = _glibc(files, machine)
    if found != UNKNOWN:
        return found
    library = files.read(f"/lib/ld-musl-{machine}.so.1", LIBRARY_BYTES)
    return UNKNOWN if library is None else _musl(library)


def _glibc(files: Files, machine: str) -> str:
    for directory in _directories(machine):
        library = files.read(f"{directory}/libc.so.6", LIBRARY_BYTES)
        if library:
            minors = [int(one) for one in re.findall(_GLIBC_SAYS, library) or re.findall(_GLIBC, library)]
            return f"glibc-2.{max(minors)}" if minors else UNKNOWN
    return UNKNOWN


def _directories(machine: str) -> Iterator[str]:
    """Where a distribution puts its C library, the likeliest first."""
    for top in ("", "/usr"):
        for name in (f"lib/{machine}-linux-gnu", "lib64", "lib"):
            yield f"{top}/{name}"


def _musl(library: Optional[bytes]) -> str:
    version = re.search(_MUSL, library or b"")
    return f"musl-{version[1].decode('ascii')}" if version else "musl"
