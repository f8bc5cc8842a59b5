"""What a request is judged by, beside its own words: the node's trees and leases."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nodeagent.domain.docker_paths import Trees
from nodeagent.domain.docker_ticket import Ticket

_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Grounds:
    """The node as it is now. *leased* are the ids of containers that hold leases.

    *by_label* tells a ticket of `gpulease docker run` from a CDI device, whose file brings the mounts along.
    *buildkit* is the site's word that its daemon grants builds no devices.
    """

    trees: Trees
    leased: frozenset[str] = frozenset()
    ticket: Ticket | None = None
    by_label: bool = True
    buildkit: bool = False

    def why_not_join(self, container: str) -> str | None:
        """Why *container*'s namespaces or volumes may not be shared; None where they may.

        A name or a part of an id may mean any container, so only whole ids are told from those of leases.
        """
        if not self.leased:
            return None
        if container in self.leased:
            return "that container holds a lease: nobody shares its namespaces or volumes"
        if not _ID.fullmatch(container):
            return (
                "name the other container by its whole id (docker ps --no-trunc) while containers hold leases"
            )
        return None
