"""``gpulease docker run``: take a lease, then become the engine's client.

The lease follows the container, not us: once the client runs in our place, nothing of ours is left to end.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

from gpulease.client import Client, new_request_id
from gpulease.containers import additions, fence, variables
from gpulease.containers.commandline import CommandLine, read
from gpulease.containers.flags import tables_of
from gpulease.containers.placement import UNGRANTED, Placement
from gpulease.containers.wanted import Wanted, our_flags, wanted
from gpulease.errors import BreaksFence, EngineFailed, GpuleaseError
from gpulease.launch import NotStarted, become
from gpulease.models import Lease
from gpulease.relay import ENDING, Interrupted, Relay
from gpulease.run import give_back, give_up
from gpulease.screen import Screen


class Wrapper:
    """One call. *out* gets what ``--dry-run`` prints, *err* what is to be said."""

    def __init__(self, client: Client, out: Screen, err: Screen, environment: Mapping[str, str]) -> None:
        self._client = client
        self._out = out
        self._err = err
        self._environment = environment
        self._relay = Relay()

    def start(self, engine: str, words: Sequence[str]) -> None:
        """Become the engine's client in a lease; comes back from a dry run only.

        Raises:
            GpuleaseError: no container was asked for; no lease is left.
        """
        line = read(engine, words, tables_of(engine), our_flags())
        asked = wanted(line.ours, line.creates_only)
        fence.refuse(line, asked)
        for reason in variables.contradictions(line, self._environment):
            raise BreaksFence(reason)
        if asked.dry_run:
            self._out.line(shell_line(line.engine_words(*additions.words_for(line, UNGRANTED))))
            return
        if asked.note:
            self._say(asked.note)
        lease = self._take(line, asked)
        try:
            command, environment = self._command(line, lease)
            self._state(lease)
            self._become(command, environment)
        except BaseException:
            give_back(self._client, lease, self._err)
            raise

    def _take(self, line: CommandLine, asked: Wanted) -> Lease:
        order = {
            **asked.fields,
            "holder": {"kind": "process"},
            "anchor": _anchor(line, asked),
            "request_id": asked.fields.get("request_id") or new_request_id(),
        }
        lease: Optional[Lease] = None
        try:
            with self._relay.interrupting():
                lease = self._client.grant(**order)
                return self._client.granted(lease)
        except Interrupted as signalled:
            give_up(self._client, order, lease)
            raise NotStarted("Interrupted", f"{signalled} before the container was made") from None
        except GpuleaseError:
            if lease is not None:
                give_back(self._client, lease, self._err)
            raise

    def _command(self, line: CommandLine, lease: Lease) -> tuple[list[str], dict[str, str]]:
        placement = Placement.of(lease)
        if placement is None:
            raise EngineFailed(f"the agent says nothing of a container for lease {lease.id}: it is too old")
        settings = variables.with_users_preload(placement.environment, line, self._environment)
        if additions.too_short_stop(line, placement):
            least = placement.stop_timeout_seconds
            self._say(f"note: --stop-timeout is raised to {least}, the time that the lease gives to stop")
        words = additions.words_for(line, replace(placement, environment=settings))
        return line.engine_words(*words), additions.client_environment(self._environment, settings)

    def _become(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        if signal.sigpending() & ENDING:
            raise NotStarted("Interrupted", "a signal before the container was made")
        self._err.flush()
        self._relay.give_back()
        become(command, environment)

    def _state(self, lease: Lease) -> None:
        """What holds the lease, in one line: the image decided, too."""
        held = ", ".join(f"{kind} {level}" for kind, level in lease.guarantee.items())
        self._say(f"lease {lease.id}: {held}")

    def _say(self, text: str) -> None:
        self._err.line(f"gpulease: {text}")


def shell_line(words: Sequence[str]) -> str:
    """*words* as one line for a shell, in ASCII, whatever is in them (bash, zsh and ksh know ``$'…'``)."""
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    return shlex.quote(word) if word.isascii() and (word.isprintable() or not word) else _escaped(word)


def _escaped(word: str) -> str:
    shown = (
        chr(byte) if 0x20 <= byte < 0x7F and chr(byte) not in "'\\" else f"\\x{byte:02x}"
        for byte in os.fsencode(word)
    )
    return f"$'{''.join(shown)}'"


def _anchor(line: CommandLine, asked: Wanted) -> dict[str, Any]:
    anchor: dict[str, Any] = {"kind": "container", "engine": line.engine}
    if asked.restarts:
        anchor["restarts"] = True
    if asked.start_seconds is not None:
        anchor["start_seconds"] = asked.start_seconds
    return anchor
