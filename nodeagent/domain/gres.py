"""What Slurm believes of one node's GPUs: gres.conf, and the counts of slurm.conf where it is silent.

The place of a GPU in `Gres.gpus` is Slurm's *position index*, the numbers of SLURM_JOB_GPUS: the order of the
lines and files, or ascending files with AutoDetect=rsmi (src/plugins/gres/gpu/gres_gpu.c). It is neither the
device's minor number nor the index that ROCr gives it: see `nodeagent.adapters.slurm_conf` for the way there.
Shards are dealt as src/plugins/gres/common/gres_c_s.c does: by file where lines name files, else evenly.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nodeagent.domain.device import Device, Inventory
from nodeagent.domain.slurm_lines import Line

OFF = "off"


@dataclass(frozen=True, slots=True)
class GresGpu:
    """One GPU as Slurm numbers it, with the shards that it is worth."""

    index: int
    file: str  # "/dev/dri/renderD128"
    type: str | None
    shards: int


@dataclass(frozen=True, slots=True)
class Gres:
    """One node's GPUs in Slurm's order, and the files of shard lines that name no GPU (Slurm drops them)."""

    gpus: tuple[GresGpu, ...] = ()
    autodetect: str = OFF
    stray: tuple[str, ...] = ()

    def gpu(self, number: int) -> GresGpu | None:
        """The GPU of one number in SLURM_JOB_GPUS: its position, or its render minor where that is none.

        Some sites' Slurm was seen to give minors (ROCm/device-metrics-exporter#84).
        """
        if 0 <= number < len(self.gpus):
            return self.gpus[number]
        render = f"renderD{number}"
        return next((gpu for gpu in self.gpus if gpu.file.rpartition("/")[2] == render), None)


def device_of(gpu: GresGpu, inventory: Inventory) -> Device | None:
    """The device behind *gpu*'s file, by what the file's name says: node or PCI address, never by order.

    None: this node has no such device, or the name fits several (a card that is partitioned).
    """
    name = gpu.file.rpartition("/")[2]
    by_path = re.fullmatch(r"pci-([0-9a-f:.]+)-(?:render|card)", name)
    if by_path:
        found = [one for one in inventory.devices if one.pci == by_path[1]]
    else:
        found = [one for one in inventory.devices if name in (one.render_node, one.card)]
    return found[0] if len(found) == 1 else None


def owned(gres: Gres, inventory: Inventory) -> frozenset[str]:
    """Keys of the devices that *gres* names."""
    return frozenset(device.key for gpu in gres.gpus if (device := device_of(gpu, inventory)))


@dataclass(frozen=True, slots=True)
class Counts:
    """``Gres=`` of a node in slurm.conf: how many of each name, and of each (name, type)."""

    totals: Mapping[str, int] = field(default_factory=dict)
    typed: Mapping[tuple[str, str], int] = field(default_factory=dict)


def counts_of(lines: Iterable[Line], node: str) -> Counts:
    """What slurm.conf says that *node* has; ``NodeName=DEFAULT`` holds for the lines after it.

    Raises InvalidField.
    """
    default: Line | None = None
    for line in lines:
        told = line if line.get("Gres") is not None else default
        if (line.get("NodeName") or "").upper() == "DEFAULT":
            default = told
        elif line.get("NodeName") is not None and line.about(node):
            return Counts() if told is None else _counts(told)
    return Counts()


def _counts(line: Line) -> Counts:
    totals: Counter[str] = Counter()
    typed: Counter[tuple[str, str]] = Counter()
    for word in filter(None, (line.get("Gres") or "").split(",")):
        name, *more = [part for part in word.split(":") if part.lower() != "no_consume"]
        count = line.counted("Gres", more.pop()) if more and more[-1][:1].isdigit() else 1
        totals[name.lower()] += count
        typed.update({(name.lower(), kind): count for kind in more[:1]})
    return Counts(totals, typed)


def nodes_on(lines: Iterable[Line], hostname: str) -> tuple[str, ...]:
    """The nodes of slurm.conf that run on this host: by NodeHostname, else by name. Raises InvalidField."""
    nodes: list[str] = []
    for line in lines:
        if line.get("NodeName") is None or (line.get("NodeName") or "").upper() == "DEFAULT":
            continue
        if line.get("NodeHostname") is None:
            nodes += [hostname] if line.about(hostname) else []
            continue
        names, hosts = line.names("NodeName"), line.names("NodeHostname")
        hosts = hosts * len(names) if len(hosts) == 1 else hosts
        nodes += [
            name
            for name, host in zip(names, hosts, strict=False)
            if host.partition(".")[0] in (hostname, "localhost")
        ]
    return tuple(dict.fromkeys(nodes))


def parse(lines: Iterable[Line], node: str, counts: Counts | None = None, found: Sequence[str] = ()) -> Gres:
    """The GPUs of *node* after gres.conf's *lines*.

    *counts* are slurm.conf's, None where there is none; *found* the files of the node's GPUs, which
    AutoDetect finds: as many as slurm.conf gives the node.
    Raises InvalidField, which names file, line, field and what to write.
    """
    mine = [_checked(one) for one in lines if one.about(node)]
    autodetect = _autodetect(mine)
    named = _named(mine)
    files = list(named)
    if autodetect != OFF:
        given = len(found) if counts is None else counts.totals.get("gpu", 0)
        room = max(0, given - len(named))
        files = sorted([*files, *[file for file in found if file not in named][:room]], key=_natural)
    shards, stray = _shards(mine, files, counts or Counts())
    gpus = (
        GresGpu(index, file, named.get(file), share)
        for index, (file, share) in enumerate(zip(files, shards, strict=True))
    )
    return Gres(tuple(gpus), autodetect, stray)


def _checked(line: Line) -> Line:
    if line.rest:
        raise line.wrong(line.rest[:40], "is no KEY=VALUE: quote a value that holds blanks, or remove it")
    return line


def _autodetect(lines: Sequence[Line]) -> str:
    """The setting of the node's own lines, else of the line for all."""
    told = [(line.get("NodeName") is None and line.get("Name") is None, line) for line in lines]
    values = [(general, value.lower()) for general, line in told if (value := line.get("AutoDetect"))]
    return min(values, key=lambda one: one[0])[1] if values else OFF


def _of(lines: Sequence[Line], name: str) -> list[Line]:
    return [line for line in lines if (line.get("Name") or "").lower() == name]


def _named(lines: Sequence[Line]) -> dict[str, str | None]:
    """File and type of every GPU that the lines name, in their order."""
    named: dict[str, str | None] = {}
    for line in _of(lines, "gpu"):
        for file in _files(line):
            if file in named:
                raise line.wrong("File", f"{file} is a GPU of an earlier line: name each file once")
            named[file] = line.get("Type")
    return named


def _files(line: Line) -> tuple[str, ...]:
    """One file for each GPU of the line: of MultipleFiles, which are one GPU, the render node."""
    if line.get("MultipleFiles") is not None:
        files = line.names("MultipleFiles")
        if not files:
            raise line.wrong("MultipleFiles", "names no file")
        return (next((file for file in files if "render" in file), files[0]),)
    files = line.names("File" if line.get("File") is not None else "Files")
    count = line.count("Count")
    if files and count not in (None, len(files)):
        raise line.wrong("Count", f"is {count}, but File names {len(files)}: leave Count out")
    if not files and line.get("AutoDetect") in (None, OFF) and line.get("Type") is None:
        raise line.wrong("File", "is missing: name the render nodes, as in File=/dev/dri/renderD[128-135]")
    return files


def _shards(lines: Sequence[Line], files: Sequence[str], counts: Counts) -> tuple[list[int], tuple[str, ...]]:
    """Shards of each of *files*, and the files of shard lines that are none of them."""
    by_file: dict[str, int] = {}
    total = counts.totals.get("shard", 0)
    shard_lines = _of(lines, "shard")
    for line in shard_lines:
        named = line.names("File")
        if not named and len(shard_lines) > 1:
            raise line.wrong("File", "is missing: name it on each shard line, or have one line alone")
        count = line.count("Count")
        if not named:
            total = max(1, total) if count is None else count
        for file in named:
            by_file[file] = 1 if count is None else count // len(named)
    if by_file:
        return [by_file.get(file, 0) for file in files], tuple(sorted(by_file.keys() - set(files)))
    return _dealt(total, len(files)), ()


def _dealt(total: int, places: int) -> list[int]:
    """*total* in *places* parts, the smaller ones first: as Slurm's `_distribute_count`."""
    dealt = []
    for left in range(places, 0, -1):
        dealt.append(total // left)
        total -= dealt[-1]
    return dealt


def _natural(file: str) -> list[tuple[int, str]]:
    """Sorts renderD9 before renderD128."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", file)]
