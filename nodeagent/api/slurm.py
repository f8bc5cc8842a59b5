"""Routes of Slurm's scripts: plain text both ways, so that a shell needs no parser."""

from __future__ import annotations

from collections.abc import Callable

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
            return Reply(str(self._agent.slurm.prolog(call.caller, call.octets, _wait(seated))))

    def epilog(self, call: Call) -> Reply:
        with self._waiting.seat(call.caller) as seated:
            return Reply(str(self._agent.slurm.epilog(call.caller, call.octets, _wait(seated))))

    def task(self, call: Call) -> Reply:
        return Reply("".join(f"{line}\n" for line in self._agent.slurm.task(call.caller, call.octets)))

    def routes(self) -> tuple[Route, ...]:
        return (
            _of_roots("prolog", "Give a job that is about to start its lease.", self.prolog),
            _of_roots("epilog", "Take back the lease of a job that ended.", self.epilog),
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


def _wait(seated: bool) -> float:
    """Seconds that a call may wait; none where too many wait already."""
    return LONGEST_WAIT if seated else 0


def _of_roots(script: str, summary: str, answer: Callable[[Call], Reply]) -> Route:
    """The route of one of root's two scripts."""
    return Route(
        "POST",
        f"/v1/slurm/{script}",
        f"slurm{script.capitalize()}",
        summary,
        answer,
        {200: Promise("A word, and a line that says why.")},
        problems=(403, 503),
        octets=True,
        administrators=True,
        media=(PLAIN,),
    )
