"""What a browser may send: it acts for whoever forwarded the socket, whatever page told it to.

`ssh -L 8080:/run/nodeagent/api.sock` makes the agent a web server of somebody's own machine. Every page that
is open there can make the browser call it, in the name of the user who logged in. Programs send none of the
headers that are judged here but ``Host``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from flask import Request

from nodeagent.domain.errors import NotAllowed

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_OWN = ("same-origin", "none")  # none: a bookmark, or the address bar


@dataclass(frozen=True, slots=True)
class BrowserCheck:
    """*hosts* are the names, in lower case and without a port, by which the agent may be called."""

    hosts: Collection[str] = LOOPBACK

    def check(self, request: Request, *, page: bool) -> None:
        """Refuse what another site's page sent; *page*: a link from anywhere may lead there.

        Raises:
            NotAllowed: another origin; or a name that is not the agent's, as after DNS rebinding, where
                origins prove nothing.
        """
        host = request.headers.get("Host", "").strip().lower()
        if host and name_of(host) not in self.hosts:
            raise NotAllowed(f"Host: this agent is called {' or '.join(sorted(self.hosts))}")
        origin = request.headers.get("Origin")
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            raise NotAllowed("Origin: a page of another site may not call the agent")
        if request.headers.get("Sec-Fetch-Site", "none") not in _OWN and not (page and _navigates(request)):
            raise NotAllowed("Sec-Fetch-Site: a page of another site may not call the agent")


def name_of(host: str) -> str:
    """The Host header *host* without its port; an IPv6 address keeps its brackets."""
    name, separator, port = host.rpartition(":")
    return name if separator and (not port or port.isdecimal()) else host


def _navigates(request: Request) -> bool:
    """Whether a person goes there, in a window or tab of its own."""
    asked = (request.method, request.headers.get("Sec-Fetch-Mode"), request.headers.get("Sec-Fetch-Dest"))
    return asked == ("GET", "navigate", "document")
