"""``gpulease run`` and ``exec``: a command inside a lease, with nothing left behind."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Optional

from gpulease.client import Client, new_request_id
from gpulease.errors import FAILED_BEFORE_START, GpuleaseError
from gpulease.launch import NotStarted, become, die_with, environment_with
from gpulease.models import Lease
from gpulease.progress import Progress
from gpulease.relay import Interrupted, Relay, restore_ignored
from gpulease.screen import Screen

RELEASE_WAIT_SECONDS = 10.0
PARTING_SECONDS = 2.0  # an agent that is away must not hold up a user who pressed Ctrl-C
_READY = b"ready\n"


class Runner:
    """The wrapper: stays outside the lease, so that ending what is inside never ends it."""

    def __init__(self, client: Client, screen: Screen) -> None:
        self._client = client
        self._screen = screen
        self._relay = Relay()

    def run(self, command: Sequence[str], fields: dict[str, Any], show: bool = False) -> int:
        """Take a lease, run *command* in it, release it; the command's exit code, 128 + its signal if killed.

        Raises:
            GpuleaseError: something failed before the command started; no lease is left.
        """
        lease = self._take(fields)
        try:
            if show:
                self._screen.line(json.dumps(lease.raw))
            self._screen.flush()
            if lease.for_one_command:
                return self._started(command, lease)
            return self._in_lease(command, lease)
        finally:
            give_back(self._client, lease.id, self._screen)

    def _take(self, fields: dict[str, Any]) -> Lease:
        order = {
            **fields,
            "holder": _holder(fields),
            "anchor": {"kind": "cgroup"},
            "request_id": fields.get("request_id") or new_request_id(),
        }
        lease: Optional[Lease] = None
        progress = Progress(self._screen)
        try:
            with self._relay.interrupting():
                lease = self._client.grant(**order)
                return self._client.granted(lease, progress)
        except Interrupted as signalled:
            give_up(self._client, order, lease)
            raise NotStarted("Interrupted", f"{signalled} before the command started") from None
        except GpuleaseError:
            if lease is not None:
                give_back(self._client, lease.id, self._screen)
            raise
        finally:
            progress.end()

    def _in_lease(self, command: Sequence[str], lease: Lease) -> int:
        wrapper = os.getpid()
        reading, writing = os.pipe()  # closed by exec: what it holds then tells how far the child came
        child = os.fork()
        if child == 0:
            self._child(command, lease, wrapper, writing)
        os.close(writing)
        try:
            status = self._relay.until_end(child)
            report = _read_all(reading)
        finally:
            os.close(reading)
        if report != _READY:
            raise _failure(report, status)
        return exit_code(status)

    def _started(self, command: Sequence[str], lease: Lease) -> int:
        from gpulease.supervised import run_supervised

        environment = environment_with(os.environ, lease.environment)
        status = run_supervised(self._client, self._relay, lease.id, command, environment)
        if status is None:
            self._screen.line("gpulease: note: the command's supervisor died; its exit code is lost")
            return 1
        return exit_code(status)

    def _child(self, command: Sequence[str], lease: Lease, wrapper: int, report: int) -> None:
        """Never returns: the command, or an exit with the failure in *report*."""
        try:
            die_with(wrapper)
            self._relay.give_back()
            attached = self._client.attach(lease.id)
            environment = environment_with(os.environ, attached.environment or lease.environment)
            os.write(report, _READY)
            become(command, environment)
        except GpuleaseError as failure:
            os.write(report, json.dumps([failure.code, str(failure)]).encode("ascii"))
        except BaseException as fault:
            os.write(report, json.dumps(["Fault", repr(fault)]).encode("ascii"))
        finally:
            os._exit(FAILED_BEFORE_START)


def give_back(client: Client, lease_id: int, screen: Screen) -> None:
    """The command's exit code matters more than a release that did not work: the agent reaps it then."""
    progress = Progress(screen)
    try:
        left = client.release(lease_id, RELEASE_WAIT_SECONDS, progress)
    except GpuleaseError as failure:
        screen.line(f"gpulease: note: lease {lease_id} is left for the agent to reap: {failure}")
        return
    finally:
        progress.end()
    if left.state == "releasing":
        screen.line(f"gpulease: note: lease {lease_id} is still releasing")
    elif left.state == "failed":
        why = left.reason or "not proved clean"
        screen.line(f"gpulease: note: a slice of lease {lease_id} is quarantined: {why}")


def give_up(client: Client, order: dict[str, Any], lease: Optional[Lease]) -> None:
    """Give back what was asked for, also when the signal came before the answer: the same id finds it."""
    parting = Client(client.socket, timeout=PARTING_SECONDS)
    with suppress(GpuleaseError):
        parting.release((lease or parting.grant(**order)).id)


def _holder(fields: dict[str, Any]) -> dict[str, str]:
    """This process. The agent knows its pid better than we do, who may live in a pid namespace.

    But where the user gave the request id, our pid keeps a second wrapper from getting the first one's lease,
    and from ending it.
    """
    return {"kind": "process", "id": str(os.getpid())} if fields.get("request_id") else {"kind": "process"}


def execute(client: Client, lease_id: int, command: Sequence[str]) -> None:
    """Move this process into the lease and become *command*; returns only by an exception."""
    attached = client.attach(lease_id)
    settings = attached.environment
    if settings is None:
        settings = client.lease(lease_id).environment
    environment = environment_with(os.environ, settings)
    restore_ignored()
    become(command, environment)


def exit_code(status: int) -> int:
    return os.WTERMSIG(status) + 128 if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _read_all(descriptor: int) -> bytes:
    parts: list[bytes] = []
    while True:
        part = os.read(descriptor, 4096)
        if not part:
            return b"".join(parts)
        parts.append(part)


def _failure(report: bytes, status: int) -> NotStarted:
    try:
        code, why = json.loads(report[len(_READY) :] if report.startswith(_READY) else report)
    except ValueError:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return NotStarted("Interrupted", f"signal {number} before the command started")
    return NotStarted(str(code), str(why))
