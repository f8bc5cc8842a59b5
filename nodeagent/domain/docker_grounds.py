"""What a request is judged by, beside its own words: the node's trees and leases."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.domain.container import is_id
from nodeagent.domain.docker_paths import Trees
from nodeagent.domain.docker_ticket import Ticket


@dataclass(frozen=True, slots=True)
class Grounds:
    """The node as it is now. *leased* are the ids of containers that hold leases.

    *by_cdi*: the ticket is a CDI device's, whose file brings the mounts along.
    *buildkit* is the site's word that its daemon grants builds no devices.
    """

    trees: Trees
    leased: frozenset[str] = frozenset()
    ticket: Ticket | None = None
    by_cdi: bool = False
    buildkit: bool = False

    def why_not_join(self, container: str) -> str | None:
        """Why *container*'s namespaces or volumes may not be shared; None where they may.

        A name or a part of an id may mean any container, so only whole ids are told from those of leases.
        """
        if not self.leased:
            return None
        if container in self.leased:
            return "that container holds a lease: nobody shares its namespaces or volumes"
        if not is_id(container):
            return (
                "name the other container by its whole id (docker ps --no-trunc) while containers hold leases"
            )
        return None
