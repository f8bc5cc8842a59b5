"""Slurm's files on this node: found, read as root may read them, and read again when they change."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nodeagent.adapters.systemcalls import outside_fault
from nodeagent.domain.device import Inventory
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.gres import Counts, Gres, counts_of, nodes_on, parse
from nodeagent.domain.slurm_lines import Line, included, line, logical

STANDARD = (Path("/etc/slurm"), Path("/run/slurm/conf"))  # the second: of a slurmd that is configless
GRES, SLURM = "gres.conf", "slurm.conf"
MOST_BYTES = 4 << 20  # of one file: a cluster's node list may be long
MOST_FILES = 64  # read for one: includes

_Stamp = tuple[int, int, int, int] | None  # device, inode, mtime, size; None: is not there


@dataclass(frozen=True, slots=True)
class Files:
    """The lines of gres.conf and slurm.conf, as *seen*, and the name that Slurm has for this host."""

    gres: tuple[Line, ...]
    slurm: tuple[Line, ...]
    node: str
    seen: Mapping[Path, _Stamp]
    source: Path  # gres.conf, whether it is there or not
    counts: dict[str, Counts] = field(default_factory=dict)

    def counts_of(self, node: str) -> Counts:
        """What slurm.conf says that *node* has. A big cluster's has thousands of lines: asked once."""
        if node not in self.counts:
            self.counts[node] = counts_of(self.slurm, node)
        return self.counts[node]

    def fresh(self) -> bool:
        """Whether every file is still as it was seen."""
        return all(_stamp(path) == stamp for path, stamp in self.seen.items())


class SlurmConf:
    """Slurm's view of this node's GPUs.

    gres.conf is *gres_conf*, else beside *slurm_conf* (SLURM_CONF), else in the first of *standard* that has
    one of the files; slurm.conf is *slurm_conf*, else beside it.
    """

    def __init__(
        self,
        gres_conf: Path | None = None,
        slurm_conf: Path | None = None,
        *,
        standard: tuple[Path, ...] = STANDARD,
        hostname: str | None = None,
    ) -> None:
        self._gres_conf = gres_conf
        self._slurm_conf = slurm_conf
        self._standard = standard
        self._hostname = (hostname or socket.gethostname()).partition(".")[0]
        self._read: tuple[tuple[Path, Path], Files] | None = None

    def files(self, slurm_conf: Path | None = None) -> Files | None:
        """Both files now; None where this node has neither. *slurm_conf*: SLURM_CONF as slurmd gave it.

        Raises:
            OutsideFault: one cannot be read, or others than root could have written it.
            InvalidField: slurm.conf names a node in a way that is no name.
        """
        gres, slurm = paths = self._paths(slurm_conf or self._slurm_conf)
        last = self._read
        if last is not None and last[0] == paths and last[1].fresh():
            return last[1]
        reader = _Reader(slurm.parent)
        gres_lines, slurm_lines = tuple(reader.lines(gres)), tuple(reader.lines(slurm))
        if self._gres_conf is not None and reader.seen[gres] is None:
            raise OutsideFault(gres, "does not exist; [slurm] gres_conf names it: mend that, or leave it out")
        if not any(reader.seen.values()):
            return None
        node = next(iter(nodes_on(slurm_lines, self._hostname)), self._hostname)
        files = Files(gres_lines, slurm_lines, node, reader.seen, gres)
        self._read = (paths, files)
        return files

    def gres(
        self, inventory: Inventory, *, node: str | None = None, slurm_conf: Path | None = None
    ) -> Gres | None:
        """What Slurm believes of *node* (default: this host) with these devices; None: no Slurm here.

        Raises:
            OutsideFault: a file cannot be read, or is not root's.
            InvalidField: a line of gres.conf, or of the node in slurm.conf, is wrong.
        """
        files = self.files(slurm_conf)
        if files is None:
            return None
        found = [f"/dev/dri/{one.render_node}" for one in inventory.devices if one.render_node]
        node = node or files.node
        counts = files.counts_of(node) if files.slurm else None
        return parse(files.gres, node, counts, found)

    def beside(self, name: str) -> tuple[Line, ...] | None:
        """The lines of a file in slurm.conf's directory; None where it is not there. Raises OutsideFault."""
        path = self._paths(self._slurm_conf)[1].with_name(name)
        reader = _Reader(path.parent)
        lines = tuple(reader.lines(path))
        return None if reader.seen[path] is None else lines

    def _paths(self, slurm_conf: Path | None) -> tuple[Path, Path]:
        if self._gres_conf is not None:
            return self._gres_conf, slurm_conf or self._gres_conf.with_name(SLURM)
        if slurm_conf is not None:
            return slurm_conf.with_name(GRES), slurm_conf
        directories = [one for one in self._standard if _stamp(one / GRES) or _stamp(one / SLURM)]
        directory = next(iter(directories), self._standard[0])
        return directory / GRES, directory / SLURM


class _Reader:
    """Reads files with what they include, relative to *base*, slurm.conf's directory, as Slurm does."""

    def __init__(self, base: Path) -> None:
        self.seen: dict[Path, _Stamp] = {}
        self._base = base
        self._reads = 0

    def lines(self, path: Path) -> Iterator[Line]:
        """The lines of *path*; none where there is no such file. Raises OutsideFault."""
        self._reads += 1
        if self._reads > MOST_FILES:
            raise OutsideFault(path, f"is one file more than {MOST_FILES}: do they include each other?")
        text = self._text(path)
        for number, content in logical(text or ""):
            other = included(content)
            if other is None:
                yield line(f"{path}:{number}", content)
                continue
            yield from self.lines(self._base / other)
            if self.seen[self._base / other] is None:
                raise OutsideFault(self._base / other, f"does not exist; {path}:{number} includes it")

    def _text(self, path: Path) -> str | None:
        try:
            # A FIFO in its place must not hold up whoever asks.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except FileNotFoundError:
            self.seen[path] = None
            return None
        except OSError as fault:
            raise outside_fault(path, fault) from fault
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            self.seen[path] = _stamp_of(status)
            _check(path, status)
            return file.read(MOST_BYTES).decode(errors="replace")


def _check(path: Path, status: os.stat_result) -> None:
    """What decides who gets a GPU must be root's, as the agent's own settings must."""
    if not stat.S_ISREG(status.st_mode):
        raise OutsideFault(path, "is no regular file")
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OutsideFault(
            path, "must belong to root and be writable by nobody else: chown root, chmod go-w it"
        )
    if status.st_size > MOST_BYTES:
        raise OutsideFault(path, f"is longer than {MOST_BYTES >> 20} MiB")


def _stamp(path: Path) -> _Stamp:
    try:
        return _stamp_of(path.stat())
    except OSError:
        return None


def _stamp_of(status: os.stat_result) -> _Stamp:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
