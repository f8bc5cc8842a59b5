"""Routes of Slurm's scripts: plain text both ways, so that a shell needs no parser."""

from __future__ import annotations

from nodeagent.api.facade import Agent
from nodeagent.api.routes import Call, Promise, Reply, Route
from nodeagent.api.waits import WaitingRoom

PLAIN = "text/plain; charset=us-ascii"
LONGEST_WAIT = 4.0  # seconds: no request holds its thread over five


class SlurmRoutes:
    """Hands the scripts' environments to the use cases as they came."""

    def __init__(self, agent: Agent, waiting: WaitingRoom) -> None:
        self._agent = agent
        self._waiting = waiting

    def prolog(self, call: Call) -> Reply:
        with self._waiting.seat(call.caller) as seated:
            wait = LONGEST_WAIT if seated else 0
            return Reply(str(self._agent.slurm.prolog(call.caller, call.octets, wait)))

    def epilog(self, call: Call) -> Reply:
        with self._waiting.seat(call.caller) as seated:
            wait = LONGEST_WAIT if seated else 0
            return Reply(str(self._agent.slurm.epilog(call.caller, call.octets, wait)))

    def task(self, call: Call) -> Reply:
        return Reply("".join(f"{line}\n" for line in self._agent.slurm.task(call.caller, call.octets)))

    def routes(self) -> tuple[Route, ...]:
        verdict = {200: Promise("A word, and a line that says why.")}
        return (
            Route(
                "POST",
                "/v1/slurm/prolog",
                "slurmProlog",
                "Give a job that is about to start its lease.",
                self.prolog,
                verdict,
                problems=(403, 503),
                octets=True,
                administrators=True,
                media=(PLAIN,),
            ),
            Route(
                "POST",
                "/v1/slurm/epilog",
                "slurmEpilog",
                "Take back the lease of a job that ended.",
                self.epilog,
                verdict,
                problems=(403, 503),
                octets=True,
                administrators=True,
                media=(PLAIN,),
            ),
            Route(
                "POST",
                "/v1/slurm/task",
                "slurmTask",
                "Let the task that asks into its job's lease.",
                self.task,
                {200: Promise("Lines for a task-prolog to print, or none.")},
                problems=(403, 410, 503),
                octets=True,
                media=(PLAIN,),
            ),
        )
