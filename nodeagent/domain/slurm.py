"""What Slurm's scripts say of a job, strictly read, and what they are answered. No text of a user passes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from nodeagent.domain.clock import SECOND_NS
from nodeagent.domain.errors import InvalidField

LARGEST_ENVIRONMENT = 64 << 10  # bytes
LONGEST_LINE = 200
LARGEST_ID = 2**32 - 2  # Slurm's job ids, uids and gids are 32 bits wide, with the last value for "none"

# What is read at all. The rest of a script's environment, users' words among it, goes by unread.
_NAMES = frozenset(
    {
        "GPULEASE_AT",
        "SLURM_CONF",
        "SLURM_HET_JOB_ID",
        "SLURM_JOB_ACCOUNT",
        "SLURM_JOB_COMMENT",
        "SLURM_JOB_EXTRA",
        "SLURM_JOB_GID",
        "SLURM_JOB_GPUS",
        "SLURM_JOB_ID",
        "SLURM_JOB_PARTITION",
        "SLURM_JOB_EXCLUSIVE",
        "SLURM_JOB_RESTART_COUNT",
        "SLURM_JOB_SLUID",
        "SLURM_JOB_START_TIME",
        "SLURM_JOB_UID",
        "SLURM_STEP_GPUS",
        "SLURM_TASK_PID",
        "SLURMD_NODENAME",
        "LD_PRELOAD",
    }
)
_DIGITS = re.compile(r"[0-9]{1,10}", re.ASCII)
_SECONDS = re.compile(r"([0-9]{1,10})\.([0-9]{2})", re.ASCII)  # as /proc/uptime prints them
_GPUS = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*", re.ASCII)
_SLUID = re.compile(r"[A-Za-z0-9]{6,32}", re.ASCII)
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}", re.ASCII)
_ACCOUNT = re.compile(r"[a-z0-9_][a-z0-9_.@:+-]{0,63}", re.ASCII)
_RUN = re.compile(r"slurm-[0-9]+-[0-9]+-([0-9]+)(\.[0-9]+)?", re.ASCII)
_PATH = re.compile(r"/[A-Za-z0-9._/+@=,-]+", re.ASCII)
MOST_GPUS = 1024


class Word(StrEnum):
    """The first line of an answer to a prolog or an epilog: all that a script acts on."""

    GRANTED = "granted"
    NONE = "none"
    REFUSED = "refused"  # the job's fault
    WAIT = "wait"  # capacity that the node owes: ask again with the same body
    FAULT = "fault"  # the node's fault, which waiting does not mend
    RELEASED = "released"
    RELEASING = "releasing"  # not proved yet: ask again
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a prolog or an epilog is answered: a word, and one line for logs and ``sinfo -R``."""

    word: Word
    why: str = ""
    hook: tuple[str, str] | None = None  # the directory of the lease's limits, and the library to load

    def __str__(self) -> str:
        lines = [str(self.word), _one_line(self.why)]
        if self.hook is not None and all(map(_PATH.fullmatch, self.hook)):
            lines.append(f"hook {self.hook[0]} {self.hook[1]}")
        return "".join(f"{line}\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a job on this node, as Slurm tells it."""

    id: int
    uid: int
    gid: int
    gpus: tuple[int, ...]  # as SLURM_JOB_GPUS has them: places in gres.conf, or on some sites render minors
    restarts: int
    start_time: int  # 0: older than Slurm 23.02, which does not tell
    at_ns: int | None  # boot time at which the script ran
    cgroup_names: tuple[str, ...]  # what its cgroup may be called, the likeliest first
    node: str | None
    conf: str | None  # path of slurm.conf
    words: Mapping[str, str]  # "extra" and "comment", a user's words
    account: str | None = None

    @property
    def run(self) -> str:
        """What a prolog's calls for this run have in common, and those for no other."""
        return f"slurm-{self.id}-{self.restarts}-{self.start_time}"

    def is_run(self, request_id: str | None) -> bool:
        """Whether *request_id* is of this run: its own, or with the lease that had it before behind it."""
        return request_id is not None and (request_id == self.run or request_id.startswith(f"{self.run}."))

    def started_as(self, request_id: str | None) -> bool:
        """Whether *request_id* is of a run that began at the same time, however often it was restarted.

        The epilog of a run that was requeued shows the next run's restarts.
        """
        found = _RUN.fullmatch(request_id or "")
        return bool(self.start_time) and found is not None and int(found[1]) == self.start_time


def job_of(environment: Mapping[str, str]) -> Job:
    """The job that a prolog's or an epilog's *environment* is about. Raises InvalidField."""
    job_id = _needed(environment, "SLURM_JOB_ID")
    conf = environment.get("SLURM_CONF") or None
    if conf is not None and not (conf.startswith("/") and conf.isprintable()):
        raise InvalidField("SLURM_CONF", "must be an absolute path")
    return Job(
        id=job_id,
        uid=_needed(environment, "SLURM_JOB_UID"),
        gid=_needed(environment, "SLURM_JOB_GID"),
        gpus=gpus_of(environment, "SLURM_JOB_GPUS"),
        restarts=number(environment, "SLURM_JOB_RESTART_COUNT") or 0,
        start_time=number(environment, "SLURM_JOB_START_TIME") or 0,
        at_ns=_at_ns(environment),
        cgroup_names=_cgroup_names(job_id, environment),
        node=node_of(environment),
        conf=conf,
        words={
            "extra": environment.get("SLURM_JOB_EXTRA", ""),
            "comment": environment.get("SLURM_JOB_COMMENT", ""),
        },
        account=account_of(environment.get("SLURM_JOB_ACCOUNT", "")),
    )


def account_of(text: str) -> str | None:
    """Slurm's account, which it keeps in small letters; None for none, and for what no account is called.

    Where slurmdbd checks no accounts it is a user's text: not worth a fault that drains the node.
    """
    lower = text.lower()
    return lower if _ACCOUNT.fullmatch(lower) else None


def parse_environment(raw: bytes) -> Mapping[str, str]:
    """The variables that are used here, from an initial environment as ``/proc/<pid>/environ`` has it.

    Raises:
        InvalidField: it is too long, or says one of them twice.
    """
    if len(raw) > LARGEST_ENVIRONMENT:
        raise InvalidField("body", f"is larger than {LARGEST_ENVIRONMENT} bytes")
    found: dict[str, str] = {}
    for record in raw.split(b"\0"):
        name, equals, value = record.decode("utf-8", "surrogateescape").partition("=")
        if not equals or name not in _NAMES:
            continue
        if name in found:
            raise InvalidField(name, "stands twice in the environment")
        found[name] = value
    return found


def number(environment: Mapping[str, str], name: str) -> int | None:
    """A plain number; None where it is not there, or empty. Raises InvalidField for anything else."""
    text = environment.get(name, "")
    if not text:
        return None
    if not _DIGITS.fullmatch(text) or int(text) > LARGEST_ID:
        raise InvalidField(name, f"must be a number up to {LARGEST_ID}")
    return int(text)


def _needed(environment: Mapping[str, str], name: str) -> int:
    found = number(environment, name)
    if found is None:
        raise InvalidField(name, "has to be there")
    return found


def _matching(environment: Mapping[str, str], name: str, pattern: re.Pattern[str]) -> str | None:
    text = environment.get(name, "")
    if text and not pattern.fullmatch(text):
        raise InvalidField(name, "is not as Slurm writes it")
    return text or None


def node_of(environment: Mapping[str, str]) -> str | None:
    """Slurm's name for the node. Raises InvalidField."""
    return _matching(environment, "SLURMD_NODENAME", _NODE)


def gpus_of(environment: Mapping[str, str], name: str) -> tuple[int, ...]:
    """``0``, ``0,2`` or ``0-3``, without repetition. Raises InvalidField."""
    text = environment.get(name, "")
    if not text:
        return ()
    if not _GPUS.fullmatch(text):
        raise InvalidField(name, "must be numbers with commas between")
    found: dict[int, None] = {}
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(dict.fromkeys(range(int(first), int(last or first) + 1)))
    if len(found) > MOST_GPUS:
        raise InvalidField(name, f"names more than {MOST_GPUS} GPUs")
    return tuple(found)


def _at_ns(environment: Mapping[str, str]) -> int | None:
    text = environment.get("GPULEASE_AT", "")
    found = _SECONDS.fullmatch(text)
    if text and found is None:
        raise InvalidField("GPULEASE_AT", "must be the first number of /proc/uptime")
    return None if found is None else (int(found[1]) * 100 + int(found[2])) * (SECOND_NS // 100)


def _cgroup_names(job_id: int, environment: Mapping[str, str]) -> tuple[str, ...]:
    """``job_<id>``, or from Slurm 26.05 on the SLUID; with CgroupJobIdPaths=yes it is the first again.

    25.11 gives the SLUID and still has the old name; SLURM_JOB_EXCLUSIVE came with 26.05.
    """
    sluid = _matching(environment, "SLURM_JOB_SLUID", _SLUID)
    names = [f"job_{job_id}"] if sluid is None else [f"job_{job_id}", sluid]
    return tuple(reversed(names)) if "SLURM_JOB_EXCLUSIVE" in environment else tuple(names)


def _one_line(text: str) -> str:
    printable = "".join(one if " " <= one <= "~" else "?" for one in text)
    return printable[:LONGEST_LINE]
