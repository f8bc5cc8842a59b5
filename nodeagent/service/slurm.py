"""What Slurm's prolog, epilog and task-prolog ask for: one door for the API."""

from __future__ import annotations

from nodeagent.domain.slurm import Verdict, Word
from nodeagent.service.orders import Caller
from nodeagent.service.rights import must_administer


class Slurm:
    """The three calls of Slurm's scripts; bodies are environments as the kernel has them."""

    def prolog(self, caller: Caller, body: bytes, wait_seconds: float = 0) -> Verdict:
        """Give a job that is about to start its lease."""
        must_administer(caller)
        return Verdict(Word.NONE)

    def epilog(self, caller: Caller, body: bytes, wait_seconds: float = 0) -> Verdict:
        """Take back the lease of a job that ended."""
        must_administer(caller)
        return Verdict(Word.NONE)

    def task(self, caller: Caller, body: bytes) -> tuple[str, ...]:
        """Let a task of a job into the job's lease; the lines that Slurm's TaskProlog understands."""
        return (Word.NONE,)
