"""Routes of leases: ask, look, attach, renew, release, clear."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from nodeagent.api.answers import (
    JournalAnswer,
    LaunchAnswer,
    LeaseAnswer,
    LeasesAnswer,
    LeftAnswer,
    LeftObjectAnswer,
)
from nodeagent.api.facade import Agent
from nodeagent.api.fields import FILTER_PATTERN, TEXT_PATTERN
from nodeagent.api.metrics import RefusalCounter
from nodeagent.api.models import ClearBody, EmptyBody, LaunchBody, LeaseOrderBody, RenewBody
from nodeagent.api.orders import order_of
from nodeagent.api.present import Presenter, Viewer, effect_answer
from nodeagent.api.query import AFTER, LEASE_ID, LIMIT, WAIT, choices, moment, pattern, whole
from nodeagent.api.routes import RETRY_AFTER, Call, Promise, Reply, Route
from nodeagent.api.waits import WaitingRoom
from nodeagent.domain.errors import NotAllowed, UnknownThing
from nodeagent.domain.lease import ENDED, HolderKind, Lease, LeaseState
from nodeagent.domain.refusals import Refusal
from nodeagent.service.launch import LaunchOrder
from nodeagent.service.orders import Granted
from nodeagent.service.rights import owns_nothing

LARGEST_UID = 2**32 - 2
_HOLDER_PATTERN = rf"^(slurm|docker|process|client):{TEXT_PATTERN.removeprefix('^')}"
_FILTERS = (
    choices("state", tuple(state.value for state in LeaseState), "Only leases in these states."),
    whole("user", 0, LARGEST_UID, "Only leases of this uid; another uid's are for administrators."),
    pattern("device", FILTER_PATTERN, "Only leases with a slice of this device, in any spelling."),
    pattern(
        "holder",
        _HOLDER_PATTERN,
        "Only leases of this holder, as kind:id; others than administrators find their own.",
    ),
    moment("since", "Only leases created then or later; others than administrators find their own."),
    moment("ended_since", "Only leases that ended at or after this time."),
    AFTER,
    LIMIT,
)
_LEASE = Promise("The lease.", LeaseAnswer)


class LeaseRoutes:
    """Turns calls about leases into use cases."""

    def __init__(
        self, agent: Agent, presenter: Presenter, waiting: WaitingRoom, refusals: RefusalCounter
    ) -> None:
        self._agent = agent
        self._presenter = presenter
        self._waiting = waiting
        self._refusals = refusals

    def grant(self, call: Call) -> Reply:
        order = order_of(cast(LeaseOrderBody, call.body), call.caller, self._agent.class_of)
        outcome = self._agent.grant(call.caller, order)
        if isinstance(outcome, Refusal):
            self._refusals.count(outcome.code)
            return Reply(self._presenter.refusal(outcome), 409)
        status = (201 if outcome.fresh else 200) if isinstance(outcome, Granted) else 202
        where = {"Location": f"/v1/leases/{outcome.lease.id}"}
        return Reply(self._own(outcome.lease, call, ticket=True), status, where)

    def list_all(self, call: Call) -> Reply:
        query = call.query
        holder = query["holder"]
        uid = _uid_filter(query, call.viewer)
        states = query["state"]
        found = self._agent.leases(
            call.caller,
            state=None if states is None else frozenset(LeaseState(state) for state in states),
            uid=uid,
            device=query["device"] or None,
            holder=None if holder is None else _holder(holder),
            since=query["since"],
            ended_since=query["ended_since"],
            after=query["after"],
            limit=query["limit"],
        )
        full = len(found) == query["limit"]
        return Reply(
            LeasesAnswer(
                leases=[
                    self._presenter.lease(
                        lease,
                        call.viewer,
                        standing=self._agent.standing(lease),
                        idle=self._agent.idle(lease),
                    )
                    for lease in found
                ],
                next=found[-1].id if full else None,
            )
        )

    def show(self, call: Call) -> Reply:
        lease_id, seconds = call.path["id"], call.query["wait"]
        if not seconds:
            return self._shown(self._agent.lease(call.caller, lease_id), call)
        with self._waiting.seat(call.caller) as seated:
            if not seated:
                return self._shown(self._agent.lease(call.caller, lease_id), call, RETRY_AFTER)
            return self._shown(self._agent.wait_lease(call.caller, lease_id, seconds), call)

    def release(self, call: Call) -> Reply:
        lease_id, seconds = call.path["id"], call.query["wait"]
        with self._waiting.seat(call.caller) as seated:
            try:
                lease = self._agent.release(call.caller, lease_id, seconds if seated else 0)
            except UnknownThing:
                return Reply(None, 204)
        if lease.state in ENDED:
            return self._shown(lease, call)
        return Reply(self._own(lease, call), 202, {} if seated else RETRY_AFTER)

    def attach(self, call: Call) -> Reply:
        return Reply(self._own(self._agent.attach(call.caller, call.path["id"]), call))

    def launch(self, call: Call) -> Reply:
        given = cast(LaunchBody, call.body).descriptors
        pid = self._agent.launch(call.caller, call.path["id"], LaunchOrder(**given.model_dump()))
        return Reply(LaunchAnswer(pid=pid), 201)

    def renew(self, call: Call) -> Reply:
        body = cast(RenewBody, call.body)
        lease = self._agent.renew(call.caller, call.path["id"], body.ttl_seconds)
        return Reply(self._own(lease, call))

    def clear(self, call: Call) -> Reply:
        force = cast(ClearBody, call.body).force
        return self._shown(self._agent.clear_lease(call.caller, call.path["id"], force=force), call)

    def journal(self, call: Call) -> Reply:
        effects = self._agent.journal(call.caller, call.path["id"])
        return Reply(JournalAnswer(effects=[effect_answer(one) for one in effects]))

    def left(self, call: Call) -> Reply:
        left = self._agent.left(call.caller, call.path["id"])
        objects = [LeftObjectAnswer(**one) for one in left.objects]
        return Reply(LeftAnswer(lease=left.lease, ended=left.ended, note=left.note, objects=objects))

    def _shown(self, lease: Lease, call: Call, headers: Mapping[str, str] | None = None) -> Reply:
        told_of = call.viewer.sees(lease.holder.uid)
        told = self._agent.told(lease) if told_of else None
        container = self._agent.container(call.caller, lease) if told_of else None
        standing, idle = self._agent.standing(lease), self._agent.idle(lease)
        shown = self._presenter.lease(lease, call.viewer, told, container, standing, idle)
        return Reply(shown, headers=headers or {})

    def _own(self, lease: Lease, call: Call, *, ticket: bool = False) -> LeaseAnswer:
        container = self._agent.container(call.caller, lease, ticket=ticket)
        standing, idle = self._agent.standing(lease), self._agent.idle(lease)
        return self._presenter.own_lease(lease, container, standing, idle)

    def routes(self) -> tuple[Route, ...]:
        one = "/v1/leases/{id}"
        return (
            Route(
                "POST",
                "/v1/leases",
                "grantLease",
                "Ask for slices; the lease is granted, queued or refused.",
                self.grant,
                {
                    200: Promise("The lease that the same request got before.", LeaseAnswer, ("Location",)),
                    201: Promise("The granted lease.", LeaseAnswer, ("Location",)),
                    202: Promise("The queued lease: follow it with ?wait.", LeaseAnswer, ("Location",)),
                },
                problems=(403, 409, 429, 503),
                body=LeaseOrderBody,
                body_required=True,
            ),
            Route(
                "GET",
                "/v1/leases",
                "listLeases",
                "Leases by ascending id; others' are masked.",
                self.list_all,
                {200: Promise("One page.", LeasesAnswer)},
                problems=(403, 404, 503),
                query=_FILTERS,
                web=True,
            ),
            Route(
                "GET",
                one,
                "showLease",
                "One lease; with ?wait, once it is settled.",
                self.show,
                {200: Promise("The lease.", LeaseAnswer, ("Retry-After",))},
                problems=(403, 404, 503),
                path_parameters=(LEASE_ID,),
                query=(WAIT,),
                web=True,
            ),
            Route(
                "DELETE",
                one,
                "releaseLease",
                "End a lease; ending one that has ended or never was succeeds.",
                self.release,
                {
                    200: Promise("The ended lease.", LeaseAnswer),
                    202: Promise(
                        "It is being released: follow it with ?wait.", LeaseAnswer, ("Retry-After",)
                    ),
                    204: Promise("There is no such lease."),
                },
                problems=(403, 503),
                path_parameters=(LEASE_ID,),
                query=(WAIT,),
            ),
            Route(
                "GET",
                f"{one}/ipc",
                "showIpc",
                "What of the lease's shared memory would go with it now, and why the rest stays.",
                self.left,
                {200: Promise("Each object of the holder's uid.", LeftAnswer)},
                problems=(403, 404, 503),
                path_parameters=(LEASE_ID,),
                administrators=True,
            ),
            self._act("attach", self.attach, "Move the calling process into the lease."),
            Route(
                "POST",
                f"{one}/launch",
                "launchLease",
                "Start the command of a lease that is supervised or has private IPC, in the caller's name.",
                self.launch,
                {201: Promise("It runs.", LaunchAnswer)},
                problems=(403, 404, 410, 429, 503),
                path_parameters=(LEASE_ID,),
                body=LaunchBody,
                body_required=True,
            ),
            Route(
                "GET",
                f"{one}/journal",
                "showJournal",
                "What was done for a lease outside the ledger, and with what proof it was undone.",
                self.journal,
                {200: Promise("The journal.", JournalAnswer)},
                problems=(403, 404, 503),
                path_parameters=(LEASE_ID,),
                administrators=True,
            ),
            self._act("renew", self.renew, "Count the lease's time from now again.", RenewBody),
            self._act(
                "clear", self.clear, "Try the proof of its slices again now.", ClearBody, administrators=True
            ),
        )

    @staticmethod
    def _act(
        verb: str,
        handle: Callable[[Call], Reply],
        summary: str,
        body: type[EmptyBody | RenewBody | ClearBody] = EmptyBody,
        *,
        administrators: bool = False,
    ) -> Route:
        return Route(
            "POST",
            f"/v1/leases/{{id}}/{verb}",
            f"{verb}Lease",
            summary,
            handle,
            {200: _LEASE},
            problems=(403, 404, 410, 429, 503),
            path_parameters=(LEASE_ID,),
            body=body,
            administrators=administrators,
        )


def _uid_filter(query: Mapping[str, int | None], viewer: Viewer) -> int | None:
    """A filter must not tell what masking hides: whose a lease is, its holder's name, when it began."""
    caller, uid = viewer.caller, query["user"]
    if caller.administrator or viewer.open:
        return uid
    hidden = query["holder"] is not None or query["since"] is not None
    if owns_nothing(caller) and (uid is not None or hidden):
        raise NotAllowed("root of another namespace has no leases here")
    if uid not in (None, caller.uid):
        raise NotAllowed("user: another user's leases are for administrators")
    return caller.uid if hidden else uid


def _holder(text: str) -> tuple[HolderKind, str]:
    kind, _, name = text.partition(":")
    return HolderKind(kind), name
