"""Who connects to the socket, and whose threads they get."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from nodeagent import config as settings
from nodeagent.adapters.peer import administrator, peer_of
from nodeagent.adapters.subuids import Subuids
from nodeagent.api.admission import Classify, Lane
from nodeagent.api.web import over_tcp
from nodeagent.service.orders import ANONYMOUS, Caller

_ANYBODY = Caller(ANONYMOUS, ANONYMOUS, frozenset(), pid=0, pidfd=None, administrator=False)


def identifier(admin_gid: int | None) -> Callable[[Mapping[str, Any]], Caller]:
    """Who a request comes from: the peer of its socket, whatever its headers say."""

    def identify(environ: Mapping[str, Any]) -> Caller:
        if over_tcp(environ):
            return _ANYBODY
        peer = peer_of(environ["gunicorn.socket"])
        return Caller(
            uid=peer.uid,
            gid=peer.gid,
            groups=frozenset(peer.groups),
            pid=peer.pid,
            pidfd=peer.pidfd,
            administrator=administrator(peer, admin_gid=admin_gid),
        )

    return identify


def classifier(config: settings.Config, owner_of: Callable[[int], int] | None = None) -> Classify:
    """Whose threads a connection gets: administrators' are reserved, and a container's root is none.

    A subordinate uid's connections count for its owner, else one user could fill every place.
    """
    admin_gid, owner_of = settings.gid_of(config.server.admin_group), owner_of or Subuids().owner

    def classify(sock: socket.socket) -> Lane:
        if sock.family != socket.AF_UNIX:
            return Lane(ANONYMOUS, reserved=False)
        with peer_of(sock) as peer:
            return Lane(owner_of(peer.uid), administrator(peer, admin_gid=admin_gid))

    return classify
