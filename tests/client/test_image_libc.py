"""Which C library a program of an image is loaded with, by its files alone."""

from __future__ import annotations

import struct

import pytest

from gpulease.containers.libc import libc_of, loader_of, program_of

from .elf import AARCH64, glibc, musl, program

LD = "/lib64/ld-linux-x86-64.so.2"
LIBC = "/lib/x86_64-linux-gnu/libc.so.6"
MUSL = "/lib/ld-musl-x86_64.so.1"
DEBIAN = {"/bin/prog": program(LD), LD: glibc(36), LIBC: glibc(36), "/bin/sh": program(LD)}
ALPINE = {"/bin/prog": program(MUSL), MUSL: musl("1.2.5"), "/bin/sh": program(MUSL)}


class Files(dict[str, bytes]):
    def read(self, path: str, most: int) -> bytes | None:
        found = self.get(path)
        return None if found is None else found[:most]


def libc(files: dict[str, bytes], name: str | None = "prog", path: str | None = None) -> str:
    return libc_of(Files(files), name, path, "x86_64")


@pytest.mark.parametrize(
    ("files", "name", "expected"),
    [
        (DEBIAN, "prog", "glibc-2.36"),
        ({**DEBIAN, LIBC: glibc(9)}, "prog", "glibc-2.9"),
        ({**DEBIAN, LIBC: b"nothing of it"}, "prog", "unknown"),
        (
            {**DEBIAN, LIBC: glibc(30) + b"(Debian GLIBC 2.31-13) stable release version 2.31."},
            "prog",
            "glibc-2.31",
        ),
        ({"/bin/prog": program(LD), "/usr/lib64/libc.so.6": glibc(34)}, "prog", "glibc-2.34"),
        (ALPINE, "prog", "musl-1.2.5"),
        ({**ALPINE, MUSL: b"\x7fELF stripped"}, "prog", "musl"),
        ({"/bin/prog": program(None)}, "prog", "static"),
        ({**DEBIAN, "/bin/prog": program(None)}, "prog", "static"),
        ({"/bin/prog": program(LD, AARCH64), LIBC: glibc(36)}, "prog", "unknown"),
        ({"/bin/prog": b"\x7fELF\1\1\1" + bytes(99)}, "prog", "unknown"),
        ({"/bin/prog": b"MZ not for Linux"}, "prog", "unknown"),
        ({**ALPINE, "/bin/prog": program("/opt/glibc/lib/ld-linux-x86-64.so.2")}, "prog", "unknown"),
        ({**DEBIAN, "/bin/prog": b"#!/bin/sh -e\necho\n"}, "prog", "glibc-2.36"),
        ({**ALPINE, "/bin/prog": b"#! /usr/bin/env -S A=1 sh -e\n"}, "prog", "musl-1.2.5"),
        ({**DEBIAN, "/bin/prog": b"#!/bin/prog\n"}, "prog", "glibc-2.36"),
        ({**DEBIAN, "/bin/prog": b"#!/nowhere\n"}, "prog", "glibc-2.36"),
        (DEBIAN, "mounted-later", "glibc-2.36"),
        ({**DEBIAN, MUSL: musl("1.2.3")}, None, "glibc-2.36"),
        (ALPINE, None, "musl-1.2.5"),
        ({**ALPINE, "/opt/glibc/lib/libc.so.6": glibc(35)}, None, "musl-1.2.5"),
        ({}, "prog", "unknown"),
        ({}, None, "unknown"),
    ],
)
def test_rules(files: dict[str, bytes], name: str | None, expected: str) -> None:
    """Program, interpreter and standard directories decide, in this order."""
    assert libc(files, name) == expected


def test_search_path() -> None:
    """A program without a slash is looked for in the image's PATH, one with a slash is not."""
    files = {**DEBIAN, "/opt/bin/prog": program(None)}
    assert libc(files, "prog", "/opt/bin:/bin") == "static"
    assert libc(files, "bin/prog", "/opt/bin") == "glibc-2.36"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["python3", "-m", "x"], "python3"),
        (["/usr/bin/tini", "-g", "--", "/entry.sh", "x"], "/entry.sh"),
        (["dumb-init", "-c", "tini", "--", "python3"], "python3"),
        (["tini", "sh"], "sh"),
        (["tini", "--"], None),
        ([], None),
    ],
)
def test_inits_are_passed_over(words: list[str], expected: str | None) -> None:
    """What counts is the program that an init of the image starts."""
    assert program_of(words) == expected


@pytest.mark.parametrize("length", range(0, 148, 7))
def test_broken_programs(length: int) -> None:
    """A program that ends too early is none without a loader: nothing is known of it."""
    with pytest.raises(ValueError):
        loader_of(program(LD)[:length])
    assert libc({**DEBIAN, "/bin/prog": program(LD)[: max(length, 20)]}) == "unknown"


def test_a_table_far_away() -> None:
    """Segments that lie beyond what is read are not looked for."""
    head = bytearray(program(LD))
    head[32:40] = struct.pack("<Q", 2**63)
    assert libc({"/bin/prog": bytes(head)}) == "unknown"
