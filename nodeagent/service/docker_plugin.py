"""docker's authorization plugin: judges a call, and spends the ticket of the container that it lets through.

It keeps nothing in memory and asks nobody: the agent may be down, and the plugin may be started anew between
a call and its answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from nodeagent.adapters.docker_tickets import Tickets
from nodeagent.domain.container import is_id
from nodeagent.domain.docker_body import Object, Request
from nodeagent.domain.docker_grounds import Grounds
from nodeagent.domain.docker_judge import read_body, why_not
from nodeagent.domain.docker_paths import Trees
from nodeagent.domain.docker_routes import Call, Route, route_of
from nodeagent.domain.docker_ticket import by_cdi, token_in
from nodeagent.domain.errors import InvalidField

_SPENT = (
    "the ticket is spent or wrong, or its lease has ended: start the container through `gpulease docker run`"
)


@dataclass(frozen=True, slots=True)
class DockerPlugin:
    """*trees* looks at the node's mounts anew for each call that is judged."""

    tickets: Tickets
    trees: Callable[[], Trees]
    buildkit: bool = False

    def before(self, request: Request) -> str | None:
        """Why dockerd may not serve *request*; None where it may. A ticket that it shows is spent then.

        Raises:
            OutsideFault: the tickets cannot be read, or are not root's.
        """
        route = route_of(request.method, request.uri, buildkit=self.buildkit)
        if isinstance(route, str):
            return route
        if route.call is Call.ORDINARY:
            return None
        try:
            return self._judge(route, read_body(route, request))
        except InvalidField as wrong:
            return str(wrong)

    def after(self, request: Request, answer: bytes) -> str | None:
        """Keep which container came of a ticket; give the ticket back where none did (no such image, say).

        Raises:
            OutsideFault: it cannot be kept.
        """
        route = route_of(request.method, request.uri, buildkit=self.buildkit)
        if not isinstance(route, Route) or route.call is not Call.CREATE:
            return None
        token = token_in(read_body(route, request))
        if token is not None:
            container = _created(answer)
            if container is None:
                self.tickets.give_back(token)
            else:
                self.tickets.bind(token, container)
        return None

    def _judge(self, route: Route, body: Object) -> str | None:
        token = token_in(body) if route.call is Call.CREATE else None
        ticket = None if token is None else self.tickets.find(token)
        if token is not None and ticket is None:
            return _SPENT
        grounds = Grounds(
            trees=self.trees(),
            leased=self.tickets.leased(),
            ticket=ticket,
            by_cdi=ticket is not None and by_cdi(body),
            buildkit=self.buildkit,
        )
        why = why_not(route, body, grounds)
        # Last: a container that is refused leaves the ticket for one that is not.
        if why is None and token is not None and not self.tickets.take(token):
            return _SPENT
        return why


def _created(answer: bytes) -> str | None:
    """The id in dockerd's answer to a create; None where there is none, as after an error."""
    try:
        said = json.loads(answer)
    except ValueError:
        return None
    name = said.get("Id") if isinstance(said, dict) else None
    return name if is_id(name) else None
