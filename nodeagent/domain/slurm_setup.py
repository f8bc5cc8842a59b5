"""The lines of Slurm's files that share a node's GPUs: what `nodeagent slurm gres-conf` prints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from nodeagent.domain.device import Device, DeviceState
from nodeagent.domain.errors import InvalidField
from nodeagent.domain.shards import Worth, best, worth

SCRIPTS = "/usr/libexec/nodeagent/slurm"
ENVIRONMENT = "amd_gpu_env"  # gres.conf's flag: tasks get ROCR_VISIBLE_DEVICES alone, not CUDA's as well
MOST_SHARDS = 1024  # of a node, where they have files: MAX_GRES_BITMAP in src/common/gres.h
NO_HOLD = "nohold_on_prolog_fail"
_BRANDS = {"amd", "ati", "instinct", "radeon"}


@dataclass(frozen=True, slots=True)
class Card:
    """One device as a GPU of gres.conf."""

    minor: int
    type: str
    cus: int
    worth: Worth


@dataclass(frozen=True, slots=True)
class Setup:
    """A node's GPUs in the order of their files, and what is left out, with the reason."""

    node: str
    cards: tuple[Card, ...]
    left_out: tuple[str, ...]

    @property
    def shards(self) -> int:
        return sum(card.worth.shards for card in self.cards)

    def runs(self) -> list[list[Card]]:
        """GPUs that follow each other and are alike: one line each."""
        return [list(run) for _, run in groupby(self.cards, key=lambda card: (card.type, card.worth))]


def set_up(node: str, devices: Sequence[Device], shards: int | None = None) -> Setup:
    """*devices* as GPUs of *node*, each in *shards*; None: in the number that suits it best.

    Raises InvalidField: a GPU has not so many shards, or Slurm takes no more of a node.
    """
    cards, left_out = [], []
    for device in sorted(devices, key=lambda one: one.render_minor or 0):
        if device.render_minor is None or device.geometry is None or device.state is DeviceState.EXCLUDED:
            left_out.append(f"{device.render_node or device.key}: {device.reason or 'has no render node'}")
            continue
        part = worth(device, device.geometry, shards) if shards else best(device, device.geometry)
        if part.fits < part.shards:
            suits = best(device, device.geometry).shards
            why = f"of {part.shards} on {device.key} only {part.fits} find CUs and hardware queues at once"
            raise InvalidField("--shards", f"{why}; {suits} suit it")
        cards.append(Card(device.render_minor, type_of(device), device.cus, part))
    setup = Setup(node, tuple(cards), tuple(left_out))
    if setup.shards > MOST_SHARDS:
        raise InvalidField("--shards", f"{setup.shards} on this node: Slurm takes {MOST_SHARDS} with File")
    return setup


def type_of(device: Device) -> str:
    """``mi300x`` of an AMD Instinct MI300X, ``mi300x_cpx`` of one of its partitions."""
    words = re.findall(r"[a-z0-9]+", device.product.lower())
    model = [word for word in words if word not in _BRANDS] or [device.gfx or "gpu"]
    mode = device.compute_partition
    return "_".join([*model, *([mode.lower()] if mode and mode != "SPX" else [])])


def gres_conf(setup: Setup) -> list[str]:
    """gres.conf. AutoDetect is off: the agent knows the GPUs, and the order of files is that of numbers."""
    lines = [f"# {card}" for run in setup.runs() for card in _comments(run[0])]
    lines += [f"# left out: {why}" for why in setup.left_out]
    if not setup.cards:
        lines.append("# no GPU to share: `nodeagent doctor` says what the agent finds here, and why not more")
    lines.append(f"NodeName={setup.node} AutoDetect=off")
    for run in setup.runs():
        file = _files(run)
        lines.append(f"NodeName={setup.node} Name=gpu Type={run[0].type} File={file} Flags={ENVIRONMENT}")
    for run in setup.runs():
        count = sum(card.worth.shards for card in run)
        lines.append(f"NodeName={setup.node} Name=shard Count={count} File={_files(run)}")
    return lines


def _comments(card: Card) -> list[str]:
    one = card.worth
    gib = one.vram_bytes / (1 << 30)
    said = [
        f"{card.type}: {one.shards} shards a GPU, each {one.cus} CUs, {gib:.1f} GiB of VRAM,"
        f" {one.queue_slots} hardware queue{'s' if one.queue_slots > 1 else ''}"
    ]
    if one.spare_cus:
        said.append(f"  {one.spare_cus} of {card.cus} CUs are in no shard: only jobs of whole GPUs use them")
    if one.effective_cus < one.cus and one.shards > 1:
        said.append(
            f"  a shard may work like {one.effective_cus} CUs: sysfs does not say which the card lost"
        )
    if not one.whole_rows:
        said.append("  a shard is no whole row of CUs: free ones may be too scattered for a job of several")
    return said


def _files(run: Sequence[Card]) -> str:
    minors = [card.minor for card in run]
    if len(minors) == 1:
        return f"/dev/dri/renderD{minors[0]}"
    spans: list[list[int]] = []
    for minor in minors:
        if spans and spans[-1][-1] == minor - 1:
            spans[-1].append(minor)
        else:
            spans.append([minor])
    listed = ",".join(str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans)
    return f"/dev/dri/renderD[{listed}]"


def slurm_conf(setup: Setup) -> list[str]:
    """slurm.conf: the node's Gres, and what the scripts need. A key that is there already is to be merged."""
    counts = dict.fromkeys((card.type for card in setup.cards), 0)
    for card in setup.cards:
        counts[card.type] += 1
    gpus = "".join(f"gpu:{kind}:{count}," for kind, count in counts.items())
    most = max((card.worth.shards for card in setup.cards), default=1)
    return [
        "# on the node's own line, beside its other keys:",
        f"#   NodeName={setup.node} Gres={gpus}shard:{setup.shards}",
        "# only with AccountingStorageType=accounting_storage/slurmdbd: without it slurmctld ends at these",
        "#   AccountingStorageTRES=gres/gpu,gres/shard",
        "# and then on the lines of its partitions, so that a GPU costs what its shards cost:",
        f"#   TRESBillingWeights=GRES/gpu={most},GRES/shard=1",
        "GresTypes=gpu,shard",
        "SelectType=select/cons_tres",
        "# the prolog ends before the job begins; Contain, where ssh is adopted, means Alloc as well",
        "PrologFlags=Alloc",
        f"Prolog={SCRIPTS}/prolog",
        f"Epilog={SCRIPTS}/epilog",
        f"TaskProlog={SCRIPTS}/task-prolog",
        "# above the scripts' own deadlines, deadline and epilog_wait of prolog.conf",
        "PrologEpilogTimeout=60",
        "# a job whose prolog failed is queued again, not held for an operator",
        f"SchedulerParameters={NO_HOLD}",
        "# processes are followed, and device files closed, by cgroup",
        "ProctrackType=proctrack/cgroup",
        "TaskPlugin=task/cgroup,task/affinity",
        "# job_submit.lua writes what a job asks for, and is where users cannot: see job_submit.lua.example",
        "JobSubmitPlugins=lua",
    ]


def cgroup_conf() -> list[str]:
    """cgroup.conf: jobs see only the devices that they were given."""
    return ["ConstrainDevices=yes"]
