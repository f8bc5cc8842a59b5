"""``gpulease docker run``: take a lease, then become the engine's client.

The lease follows the container, not us: once the client runs in our place, nothing of ours is left to end.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Optional

from gpulease.client import Client, new_request_id
from gpulease.containers import additions, fence, rootless, variables
from gpulease.containers.claim import Claim, be_guest, leave
from gpulease.containers.commandline import CommandLine, read
from gpulease.containers.engine import Engine, flags_of, has_init
from gpulease.containers.flags import tables_of
from gpulease.containers.image import NO_IMAGE, Image, cache_directory, examined, fetched
from gpulease.containers.local import daemon_here, is_rootless
from gpulease.containers.placement import UNGRANTED, Placement
from gpulease.containers.wanted import Wanted, our_flags, wanted
from gpulease.errors import FAILED_BEFORE_START, BreaksFence, EngineFailed, GpuleaseError, InLease
from gpulease.launch import NotStarted, become
from gpulease.models import Lease
from gpulease.relay import ENDING, Interrupted, Relay
from gpulease.run import PARTING_SECONDS, exit_code, give_back, give_up
from gpulease.screen import Screen


@dataclass(frozen=True)
class Order:
    """What was asked for, and what is known of the image."""

    line: CommandLine
    wanted: Wanted
    image: Image
    of_image: Mapping[str, str]  # its variables
    rootless: bool

    def fields(self) -> dict[str, Any]:
        """The body of ``POST /v1/leases``."""
        return {
            **self.wanted.fields,
            "holder": {"kind": "process"},
            "anchor": rootless.ANCHOR if self.rootless else self._anchor(),
            "request_id": self.wanted.fields.get("request_id") or new_request_id(),
        }

    def _anchor(self) -> dict[str, Any]:
        anchor: dict[str, Any] = {"kind": "container", "engine": self.line.engine, "libc": self.image.libc}
        if self.wanted.restarts:
            anchor["restarts"] = True
        if self.wanted.start_seconds is not None:
            anchor["start_seconds"] = self.wanted.start_seconds
        return anchor


class Wrapper:
    """One call. *out* gets what ``--dry-run`` prints, *err* what is to be said."""

    def __init__(self, client: Client, out: Screen, err: Screen, environment: Mapping[str, str]) -> None:
        self._client = client
        self._out = out
        self._err = err
        self._environment = environment
        self._relay = Relay()

    def start(self, engine: str, words: Sequence[str], show: bool = False) -> int:
        """Become the engine's client in a lease, *show* it before; what comes back is an exit code.

        That is so of a dry run, and of a client that only makes a container.

        Raises:
            GpuleaseError: no container was asked for; no lease is left.
        """
        line = read(
            engine, words, tables_of(engine), our_flags(), lambda: flags_of(engine, self._environment)
        )
        asked = wanted(line.ours, line.creates_only)
        fence.refuse(line, asked)
        self._refuse_variables(line, {})
        if asked.dry_run:
            from gpulease.containers.quoting import shell_line

            words = additions.words_for(line, UNGRANTED, labels=None if is_rootless(line) else "<labels>")
            self._out.line(shell_line(line.engine_words(*words)))
            return 0
        order, claim = self._take(line, asked)
        try:
            command, environment = self._command(order, claim)
            self._say(f"{claim}; image {order.image}")
            if show:
                self._err.line(json.dumps(claim.raw))
            if order.rootless:
                self._client.attach(claim.lease)
            elif line.creates_only:
                return self._made(command, environment, claim)
            self._become(command, environment)
        except BaseException:
            claim.give_back(self._client, self._err)
            raise

    def _take(self, line: CommandLine, asked: Wanted) -> tuple[Order, Claim]:
        """What is granted, and for what. The image is looked at before, so that nothing waits for a pull."""
        fields: Optional[dict[str, Any]] = None
        lease: Optional[Lease] = None
        within: Optional[InLease] = None
        try:
            with self._relay.interrupting():
                order = self._looked(line, asked)
                fields = order.fields()
                try:
                    lease = self._client.grant(**fields)
                except InLease as ours:
                    within = ours
                    return order, be_guest(self._client, line, fields, within)
                if asked.note:
                    self._say(asked.note)
                return order, Claim.of(self._client.granted(lease))
        except Interrupted as signalled:
            if within is not None and fields is not None:
                leave(Client(self._client.socket, timeout=PARTING_SECONDS), fields, within)
            elif fields is not None:
                give_up(self._client, fields, lease)
            raise NotStarted("Interrupted", f"{signalled} before the container was made") from None
        except GpuleaseError:
            if lease is not None:
                give_back(self._client, lease.id, self._err)
            raise

    def _looked(self, line: CommandLine, asked: Wanted) -> Order:
        daemon = daemon_here(line, self._environment)
        if line.is_on("--rootfs"):
            return Order(line, asked, NO_IMAGE, {}, is_rootless(line))
        engine = Engine(line, self._environment, daemon)
        inspected = fetched(engine, line)
        image = examined(engine, line, inspected, cache_directory(self._environment))
        order = Order(line, asked, image, inspected.environment, is_rootless(line))
        unheld = rootless.refuse_unheld(image, asked.floor) if order.rootless else None
        if unheld:
            self._say(unheld)
        return order

    def _command(self, order: Order, claim: Claim) -> tuple[list[str], dict[str, str]]:
        """The engine's command line, and the environment of its client."""
        line, placement = order.line, claim.placement
        if order.rootless:
            placement = rootless.placement_of(self._client, Lease.from_raw(claim.raw))
        if placement is None:
            raise EngineFailed(_unplaced(claim, line))
        self._refuse_variables(line, placement.environment)
        if placement.seccomp and fence.has_own_profile(line):
            raise BreaksFence("--security-opt seccomp=…: what holds this lease needs its own; leave it out")
        if additions.too_short_stop(line, placement):
            least = placement.stop_timeout_seconds
            self._say(f"note: --stop-timeout is raised to {least}, the time that the lease gives to stop")
        settings = variables.settled(placement.environment, line, self._environment, order.of_image)
        placement = replace(placement, environment=settings)
        words = additions.words_for(
            line,
            placement,
            profile=None if placement.seccomp is None else _in_memory("seccomp", placement.seccomp),
            # podman without root starts itself anew; its labels hold no ticket
            labels=None if order.rootless else _in_memory("labels", _lines(placement)),
            can_init=has_init(line, self._environment),
        )
        if order.rootless:
            words.insert(0, rootless.CGROUPS)
        return line.engine_words(*words), additions.client_environment(self._environment, settings)

    def _made(self, command: Sequence[str], environment: Mapping[str, str], claim: Claim) -> int:
        """Have the client make a container; its exit code. Where it makes none, nothing waits for that."""
        client = os.fork()
        if client == 0:
            try:
                self._become(command, environment)
            except GpuleaseError as failure:
                self._err.line(f"gpulease: {failure.code}: {failure}")
                self._err.flush()
            finally:
                os._exit(FAILED_BEFORE_START)
        code = exit_code(self._relay.until_end(client))
        if code != 0:
            claim.give_back(self._client, self._err)
        return code

    def _become(self, command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
        if signal.sigpending().intersection(ENDING):
            raise NotStarted("Interrupted", "a signal before the container was made")
        self._err.flush()
        self._relay.give_back()
        become(command, environment)

    def _refuse_variables(self, line: CommandLine, settings: variables.Settings) -> None:
        for reason in variables.contradictions(line, self._environment, settings):
            raise BreaksFence(reason)

    def _say(self, text: str) -> None:
        self._err.line(f"gpulease: {text}")


def _lines(placement: Placement) -> str:
    return "".join(f"{line}\n" for line in additions.label_lines(placement))


def _in_memory(what: str, text: str) -> str:
    """A path at which the engine's client finds *text*, which nobody else sees, and which is gone with it."""
    memory = os.memfd_create(f"gpulease-{what}", 0)  # to be inherited
    with os.fdopen(os.dup(memory), "w") as file:
        file.write(text)
    return f"/proc/self/fd/{memory}"


def _unplaced(claim: Claim, line: CommandLine) -> str:
    """Why the agent says nothing of how the container is to be started."""
    if claim.raw.get("slices") == []:
        return (
            f"the node only observes requests of this kind as yet, and lease {claim.lease} holds no GPU:"
            f" start the container with {line.engine} itself, as before"
        )
    return f"the agent says nothing of a container for lease {claim.lease}: it is too old"
