"""The smallest files that look like programs and C libraries."""

from __future__ import annotations

import struct

X86_64, AARCH64 = 62, 183


def program(loader: str | None, machine: int = X86_64) -> bytes:
    """The head of an ELF program, with a PT_INTERP where it has a *loader*."""
    name = b"" if loader is None else loader.encode() + b"\0"
    count = 0 if loader is None else 1
    head = b"\x7fELF\2\1\1" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, count, 0, 0, 0)
    if loader is not None:
        head += struct.pack("<IIQQQQQQ", 3, 4, 120, 0, 0, len(name), len(name), 1)
    return head + name + bytes(200)


def glibc(minor: int) -> bytes:
    """A libc.so.6 that has symbols up to ``GLIBC_2.<minor>``."""
    names = [b"GLIBC_2.2.5", b"GLIBC_PRIVATE", *(f"GLIBC_2.{one}".encode() for one in range(3, minor + 1))]
    return b"\x7fELF\2\1\1" + bytes(99) + b"\0".join(names) + b"\0"


def musl(version: str) -> bytes:
    return b"\x7fELF\2\1\1" + bytes(99) + f"musl libc\0{version}\0Version %s".encode()
