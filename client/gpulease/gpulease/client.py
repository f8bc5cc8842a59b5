"""The agent's HTTP interface as Python calls."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional

from gpulease.errors import AgentUnreachable, NotGranted, error_from
from gpulease.models import LIVE_STATES, Device, Event, Inside, Lease, Node, Quota, Raw, items
from gpulease.transport import Answer, Transport

DEFAULT_SOCKET = "/run/nodeagent/api.sock"
DEFAULT_TIMEOUT_SECONDS = 8.0  # the agent answers within 5
LONGEST_WAIT_SECONDS = 5  # that the agent lets one request wait
PAGE = 100
Told = Callable[[Lease], None]


def _nobody(_lease: Lease) -> None:
    return None


class Client:
    """One agent, found at *socket*, else ``$GPULEASE_SOCKET``, else the system's.

    *timeout* is the deadline in seconds of one call, retries included. Every method raises the errors of
    `gpulease.errors`.
    """

    def __init__(
        self,
        socket: Optional[str] = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        transport: Optional[Transport] = None,
    ) -> None:
        self.socket = socket or os.environ.get("GPULEASE_SOCKET") or DEFAULT_SOCKET
        self._transport = transport or Transport(self.socket, timeout=timeout)

    def node(self) -> Node:
        return Node.from_raw(self._get("/v1/node"))

    def devices(self, names: Iterable[str] = ()) -> tuple[Device, ...]:
        """The devices that *names* mean, in any spelling that `gpulease numbering` prints; none: all."""
        wanted = ",".join(self._placed(name) for name in names)
        query = _query(device=wanted or None)
        return tuple(Device.from_raw(item) for item in items(self._get(f"/v1/devices{query}"), "devices"))

    def quotas(self) -> tuple[Quota, ...]:
        """The quotas that hold for the caller, with what counts towards them."""
        return tuple(Quota.from_raw(item) for item in items(self._get("/v1/quotas"), "quotas"))

    def classes(self) -> tuple[str, ...]:
        """The names of the classes that the caller's requests may name, the default one first."""
        found = items(self._get("/v1/classes"), "classes")
        default = [one for one in found if one.get("default") is True][:1]
        ordered = [*default, *(one for one in found if one not in default)]
        return tuple(str(one["name"]) for one in ordered if "name" in one)

    def device(self, key: str) -> Device:
        return Device.from_raw(self._get(f"/v1/devices/{quoted(key)}"))

    def lease(self, lease_id: int, wait: int = 0) -> Lease:
        """The lease; with *wait* once it is not queued, preparing or releasing, or after as many seconds."""
        return Lease.from_raw(self._get(f"/v1/leases/{lease_id}{_query(wait=wait or None)}", wait))

    def leases(
        self,
        state: Iterable[str] = (),
        *,
        user: Optional[int] = None,
        device: Optional[str] = None,
        holder: Optional[tuple[str, str]] = None,
        ended_since: Optional[str] = None,
    ) -> tuple[Lease, ...]:
        """Every lease that fits all filters, in the order of ids; no *state* means any that has not ended.

        *ended_since*: an RFC 3339 time.
        """
        wanted = tuple(state) or LIVE_STATES
        named = ":".join(holder) if holder else None
        found: list[Lease] = []
        cursor: object = None
        while True:
            query = _query(
                state=",".join(wanted),
                user=user,
                device=device,
                holder=named,
                ended_since=ended_since,
                after=cursor,
                limit=PAGE,
            )
            page = self._get(f"/v1/leases{query}")
            leases = [Lease.from_raw(item) for item in items(page, "leases")]
            found += [lease for lease in leases if lease.state in wanted]
            # A cursor that stands still would page for ever.
            if page.get("next") in (None, cursor) or not leases:
                return tuple(found)
            cursor = page["next"]

    def grant(
        self,
        slices: Sequence[Mapping[str, Any]] = ({},),
        *,
        holder: Mapping[str, str],
        anchor: Mapping[str, Any],
        request_id: Optional[str] = None,
        **fields: Any,
    ) -> Lease:
        """Ask for a lease; it may come back ``queued`` where ``wait_seconds`` was given: see `granted`.

        *slices* and *fields* are those of ``POST /v1/leases``. A request id is made up where none is given,
        so that the retries of this call cannot take two leases.
        """
        body = {
            "request_id": request_id or new_request_id(),
            "holder": dict(holder),
            "anchor": dict(anchor),
            "slices": [self._slice(one) for one in slices],
            **{name: value for name, value in fields.items() if value is not None},
        }
        return Lease.from_raw(self._post("/v1/leases", body))

    def granted(self, lease: Lease, told: Told = _nobody) -> Lease:
        """Follow a queued lease until it is active; *told* gets it each time that it was looked at.

        Raises:
            NotGranted: it was cancelled, or its time in the queue ran out.
        """
        while lease.state in ("queued", "preparing"):
            told(lease)
            started = time.monotonic()
            lease = self.lease(lease.id, wait=LONGEST_WAIT_SECONDS)
            if lease.state in ("queued", "preparing") and time.monotonic() - started < 0.5:
                time.sleep(0.5)  # an agent that cannot wait for us must not be asked in a tight loop
        if lease.state != "active":
            why = lease.reason or "it did not fit in time"
            raise NotGranted({"detail": f"lease {lease.id} is {lease.state}: {why}"})
        return lease

    def attach(self, lease_id: int) -> Lease:
        """Move the calling process into the lease."""
        return Lease.from_raw(self._post(f"/v1/leases/{lease_id}/attach", {}))

    def launch(self, lease_id: int, command: int, cwd: int, report: int) -> int:
        """Have the agent start the one command of a lease with our standard descriptors; its pid.

        *command*, *cwd* and *report* are open descriptors: a sealed memory file of words, a directory, and a
        pipe's writing end that gets ``exited STATUS``. See ``POST /v1/leases/{id}/launch``.
        """
        given = {"stdin": 0, "stdout": 1, "stderr": 2, "command": command, "cwd": cwd, "report": report}
        pid = self._post(f"/v1/leases/{lease_id}/launch", {"descriptors": given}).get("pid")
        if not isinstance(pid, int):
            raise AgentUnreachable(f"{self.socket}: the answer has no pid")
        return pid

    def host(self, lease_id: int, **fields: Any) -> Raw:
        """Have a container in the lease that we run in; *fields* are those of ``POST …/containers``."""
        return self._post(f"/v1/leases/{lease_id}/containers", fields)

    def containers(self, lease_id: int) -> tuple[Inside, ...]:
        """The containers in a lease of ours that was not taken for them."""
        page = self._get(f"/v1/leases/{lease_id}/containers")
        return tuple(Inside.from_raw(item) for item in items(page, "containers"))

    def give_back_guest(self, lease_id: int, guest: int) -> None:
        """End what `host` gave; gone already is success."""
        self._body(self._transport.call("DELETE", f"/v1/leases/{lease_id}/containers/{guest}"))

    def renew(self, lease_id: int, ttl_seconds: Optional[int] = None) -> Lease:
        body = {} if ttl_seconds is None else {"ttl_seconds": ttl_seconds}
        return Lease.from_raw(self._post(f"/v1/leases/{lease_id}/renew", body))

    def release(self, lease_id: int, wait: float = 0.0, told: Told = _nobody) -> Lease:
        """End the lease, an unknown or ended one too; waits up to *wait* seconds for its last state.

        *told* gets it each time that it was looked at.
        """
        deadline = time.monotonic() + wait
        first = min(int(wait), LONGEST_WAIT_SECONDS)
        path = f"/v1/leases/{lease_id}"
        raw = self._body(
            self._transport.call("DELETE", path + _query(wait=first or None), extra_seconds=first)
        )
        lease = Lease.from_raw({"id": lease_id, "state": "released", **raw})
        while lease.state == "releasing" and time.monotonic() < deadline:
            told(lease)
            left = deadline - time.monotonic()
            lease = self.lease(lease_id, wait=max(1, min(int(left), LONGEST_WAIT_SECONDS)))
            if lease.state == "releasing":
                time.sleep(min(0.2, max(0.0, deadline - time.monotonic())))
        return lease

    def events(self, after: int = 0, wait: int = 0) -> tuple[tuple[Event, ...], int]:
        """The next page of events after a cursor, and the cursor after it; with *wait*, wait for one."""
        page = self._get(f"/v1/events{_query(after=after, wait=wait or None)}", wait)
        events = tuple(Event.from_raw(item) for item in items(page, "events"))
        following = page.get("next")
        last = max((event.id for event in events), default=after)
        return events, following if isinstance(following, int) and following > after else last

    def newest_events(self, count: int, lease: Optional[int] = None) -> tuple[Event, ...]:
        """The last *count* events that the caller may see, oldest first; only those of *lease*, if given."""
        page = self._get(f"/v1/events{_query(newest=count, lease=lease)}")
        return tuple(Event.from_raw(item) for item in items(page, "events"))

    def _slice(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        named = {name: asked[name] for name in ("device", "not_device") if name in asked}
        return {**asked, **{name: [self._placed(one) for one in names] for name, names in named.items()}}

    def _placed(self, name: str) -> str:
        """``local:1`` as ``lease:7:1`` of the lease that we run in: of that only we can tell."""
        world, _, number = name.strip().partition(":")
        if world.casefold() != "local":
            return name
        from gpulease.ids import lease_id

        return f"lease:{lease_id(self, 'mine')}:{number}"

    def _get(self, target: str, wait: int = 0) -> Raw:
        return self._body(self._transport.call("GET", target, extra_seconds=wait))

    def _post(self, target: str, body: Mapping[str, Any]) -> Raw:
        return self._body(self._transport.call("POST", target, json.dumps(body).encode("ascii")))

    def _body(self, answer: Answer) -> Raw:
        try:
            body = json.loads(answer.body) if answer.body.strip() else {}
        except (ValueError, RecursionError):
            body = None
        if answer.status >= 300:
            raise error_from(answer.status, body if isinstance(body, dict) else {}, answer.retry_after)
        if not isinstance(body, dict):
            raise AgentUnreachable(f"{self.socket}: the answer is not a JSON object")
        return body


def new_request_id() -> str:
    return os.urandom(16).hex()


def _query(**arguments: object) -> str:
    given = [f"{name}={quoted(str(value))}" for name, value in arguments.items() if value is not None]
    return "?" + "&".join(given) if given else ""


def quoted(value: str) -> str:
    """Percent-encoding, without the 10 ms that urllib.parse costs; device keys keep their colon and slash."""
    plain = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:/,"
    return "".join(
        chr(byte) if byte in plain else f"%{byte:02X}" for byte in value.encode("utf-8", "replace")
    )
