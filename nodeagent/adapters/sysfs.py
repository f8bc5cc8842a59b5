"""Reading files of /sys that may be missing, masked, empty or garbled, without ever raising for one."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

FILE_LIMIT = 64 << 10  # bytes; sysfs attributes fit in a page, so more is not one
NUMBER_LIMIT = 1 << 64  # the kernel's widest field
_BLANK = str.maketrans("\n\t", "  ")
_DECIMAL = re.compile(r"-?[0-9]{1,20}")
_HEXADECIMAL = re.compile(r"(?:0[xX])?[0-9a-fA-F]{1,16}")


class Problem(StrEnum):
    """Why a file gave no value."""

    MISSING = "missing"
    DENIED = "denied"  # EPERM: the device cgroup masks it; EACCES: the file mode does
    FAILED = "failed"  # any other error of the kernel
    EMPTY = "empty"
    GARBLED = "garbled"


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that gave no value; *path* is relative to the tree's root."""

    path: str
    problem: Problem
    detail: str

    @property
    def reason(self) -> str:
        return f"/{self.path}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Properties:
    """A file of ``key value`` lines. *garbled* holds the keys whose value is not a decimal number."""

    path: str
    values: Mapping[str, int]
    garbled: frozenset[str] = frozenset()


class SysTree:
    """The files below *root*, which is ``/`` on a real node. Paths are relative, like ``sys/class/drm``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._top = os.path.realpath(root).rstrip("/") + "/"

    def read_bytes(self, path: str) -> bytes:
        """The content, cut one byte over `FILE_LIMIT`; raises OSError as the kernel gives it.

        Only regular files are opened: a copied tree may hold a FIFO, and opening a device node has effects.
        """
        with self._held(path) as held:
            if not stat.S_ISREG(os.fstat(held).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            file = os.open(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = b""
            while len(content) <= FILE_LIMIT and (more := os.read(file, FILE_LIMIT + 1 - len(content))):
                content += more
            return content
        finally:
            os.close(file)

    def text(self, path: str) -> str | Unread:
        """The content without surrounding white space; control characters count as garbled."""
        content = self.content(path)
        if isinstance(content, Unread):
            return content
        try:
            text = content.decode("utf-8").strip()
        except UnicodeDecodeError:
            return Unread(path, Problem.GARBLED, "is not text")
        if not text:
            return Unread(path, Problem.EMPTY, "is empty")
        if not text.translate(_BLANK).isprintable():  # as one: a node's links alone are megabytes of text
            return Unread(path, Problem.GARBLED, "holds control characters")
        return text

    def content(self, path: str) -> bytes | Unread:
        """The raw content, or why there is none."""
        try:
            content = self.read_bytes(path)
        except OSError as error:
            return _unread(path, error)
        if len(content) > FILE_LIMIT:
            return Unread(path, Problem.GARBLED, f"is longer than {FILE_LIMIT} bytes")
        return content

    def number(self, path: str) -> int | Unread:
        """A file that holds one decimal number, possibly negative."""
        return self._parsed(path, _DECIMAL, 10, "a decimal number")

    def hexadecimal(self, path: str) -> int | Unread:
        """A file that holds one hexadecimal number, with or without ``0x``."""
        return self._parsed(path, _HEXADECIMAL, 16, "a hexadecimal number")

    def properties(self, path: str) -> Properties | Unread:
        """A KFD properties file. Lines that are not ``key value`` make the whole file garbled."""
        text = self.text(path)
        if isinstance(text, Unread):
            return text
        values: dict[str, int] = {}
        garbled = set()
        for line in text.splitlines():
            key, _, value = line.partition(" ")
            if not key.isidentifier():
                return Unread(path, Problem.GARBLED, "has a line that is not `key value`")
            number = _number(value, _DECIMAL, 10)
            if number is None or number < 0 or key in values:
                garbled.add(key)
            else:
                values[key] = number
        return Properties(path, values, frozenset(garbled))

    def link(self, path: str) -> str | None:
        """The target of a symbolic link as it is written, or None where there is no such link."""
        try:
            return str((self.root / path).readlink())
        except (OSError, ValueError):
            return None

    def names(self, path: str) -> tuple[str, ...] | Unread:
        """The entries of a directory, sorted."""
        try:
            with self._held(path) as held, os.scandir(f"/proc/self/fd/{held}") as entries:
                return tuple(sorted(entry.name for entry in entries))
        except OSError as error:
            return _unread(path, error)

    def numbered(self, path: str) -> tuple[int, ...]:
        """The entries of a directory that are plain numbers, in that order; none where there is none."""
        names = self.names(path)
        if isinstance(names, Unread):
            return ()
        return tuple(sorted(int(name) for name in names if re.fullmatch(r"0|[1-9][0-9]{0,8}", name)))

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    @contextmanager
    def _held(self, path: str) -> Iterator[int]:
        """*path*, its links followed, held and not opened. A copied tree must not lead out of itself."""
        held = os.open(self._top + path, os.O_PATH | os.O_CLOEXEC)
        try:
            # Thousands of files in one scan: a Path for each would cost more than reading it.
            if self._top != "/" and not os.readlink(f"/proc/self/fd/{held}").startswith(self._top):  # noqa: PTH115
                raise OSError(errno.EXDEV, "leads out of the tree")
            yield held
        finally:
            os.close(held)

    def _parsed(self, path: str, pattern: re.Pattern[str], base: int, what: str) -> int | Unread:
        text = self.text(path)
        if isinstance(text, Unread):
            return text
        number = _number(text, pattern, base)
        return Unread(path, Problem.GARBLED, f"is not {what}") if number is None else number


def _number(text: str, pattern: re.Pattern[str], base: int) -> int | None:
    if not pattern.fullmatch(text):
        return None
    number = int(text, base)
    return number if number < NUMBER_LIMIT else None


def _unread(path: str, error: OSError) -> Unread:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Unread(path, Problem.MISSING, "is missing")
    if error.errno in (errno.EPERM, errno.EACCES):
        name = errno.errorcode[error.errno]
        cause = "masked by the device cgroup?" if error.errno == errno.EPERM else "file mode"
        return Unread(path, Problem.DENIED, f"may not be read ({name}, {cause})")
    return Unread(path, Problem.FAILED, f"cannot be read ({error.strerror or error})")
