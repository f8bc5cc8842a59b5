"""What Slurm's scripts say of a job, strictly read, and what they are answered. No text of a user passes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

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
        "SLURM_JOB_COMMENT",
        "SLURM_JOB_EXTRA",
        "SLURM_JOB_GID",
        "SLURM_JOB_GPUS",
        "SLURM_JOB_ID",
        "SLURM_JOB_PARTITION",
        "SLURM_JOB_QOS",
        "SLURM_JOB_RESTART_COUNT",
        "SLURM_JOB_SLUID",
        "SLURM_JOB_START_TIME",
        "SLURM_JOB_UID",
        "SLURM_TASK_PID",
        "SLURMD_NODENAME",
        "LD_PRELOAD",
    }
)
_DIGITS = re.compile(r"[0-9]{1,10}", re.ASCII)


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

    def __str__(self) -> str:
        return f"{self.word}\n{_one_line(self.why)}\n"


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


def _one_line(text: str) -> str:
    printable = "".join(one if " " <= one <= "~" else "?" for one in text)
    return printable[:LONGEST_LINE]
