"""Tickets of leases, as files that the plugin takes once."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from nodeagent.adapters.docker_tickets import Tickets
from nodeagent.domain.docker_ticket import Mount, Ticket, digest
from nodeagent.domain.errors import OutsideFault

TOKEN = "0123456789abcdef" * 2
CONTAINER = "ab" * 32
RECORD = {
    "lease": 7,
    "cgroup_parents": ["gpulease-7.slice"],
    "devices": ["/dev/kfd"],
    "mounts": [["/run/nodeagent/containers/gpulease/7/limits", "/etc/gpulease/limits", True]],
    "groups": [44],
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the agents of a node keep tickets; one has one."""
    made = tmp_path / "tickets/gpulease"
    made.mkdir(mode=0o700, parents=True)
    (made / digest(TOKEN)).write_text(json.dumps(RECORD))
    return made.parent


@pytest.fixture
def tickets(directory: Path) -> Tickets:
    """The plugin's view of them."""
    return Tickets(directory)


def test_a_ticket_says_what_its_lease_may_have(tickets: Tickets) -> None:
    """Devices, mounts and cgroup are read as the agent wrote them."""
    assert tickets.find(TOKEN) == Ticket(
        7,
        frozenset(["gpulease-7.slice"]),
        frozenset(["/dev/kfd"]),
        frozenset([Mount("/run/nodeagent/containers/gpulease/7/limits", "/etc/gpulease/limits", True)]),
    )
    assert tickets.find("f" * 32) is None


def test_a_ticket_is_taken_once(tickets: Tickets) -> None:
    """Of many calls at once one gets it, and it is spent then."""
    taken: list[bool] = []
    calls = [threading.Thread(target=lambda: taken.append(tickets.take(TOKEN))) for _ in range(16)]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert taken.count(True) == 1
    assert tickets.find(TOKEN) is None


def test_a_ticket_that_brought_no_container_counts_again(tickets: Tickets) -> None:
    """Once a container is bound it does not."""
    assert tickets.take(TOKEN)
    tickets.give_back(TOKEN)
    assert tickets.take(TOKEN)
    tickets.bind(TOKEN, CONTAINER)
    tickets.give_back(TOKEN)
    assert tickets.find(TOKEN) is None
    assert tickets.leased() == {CONTAINER}


def test_a_ticket_ends_with_its_lease(tickets: Tickets, directory: Path) -> None:
    """Nothing brings back what the agent took away."""
    assert tickets.take(TOKEN)
    (directory / "gpulease" / digest(TOKEN)).unlink()
    tickets.give_back(TOKEN)
    tickets.bind(TOKEN, CONTAINER)
    assert not tickets.take(TOKEN)
    assert tickets.leased() == frozenset()


def test_what_binds_is_the_agents_to_read_alone(tickets: Tickets, directory: Path) -> None:
    """The container's id is kept whole, in a private file."""
    assert tickets.take(TOKEN)
    tickets.bind(TOKEN, CONTAINER)
    bound = directory / "gpulease" / f"{digest(TOKEN)}.bound"
    assert json.loads(bound.read_text()) == {"container": CONTAINER}
    assert bound.stat().st_mode & 0o777 == 0o600


def test_no_directory_is_no_ticket(tmp_path: Path) -> None:
    """A node without leases, or before its agent ran, has none."""
    tickets = Tickets(tmp_path / "none")
    assert tickets.find(TOKEN) is None
    assert not tickets.take(TOKEN)
    assert tickets.leased() == frozenset()


@pytest.mark.parametrize("open_", ["", "gpulease"])
def test_a_directory_that_others_may_write_is_not_believed(
    tickets: Tickets, directory: Path, open_: str
) -> None:
    """Anybody could write tickets there."""
    (directory / open_).chmod(0o777)
    with pytest.raises(OutsideFault, match="others can write"):
        tickets.find(TOKEN)


@pytest.mark.root
def test_a_ticket_of_another_user_is_not_believed(tickets: Tickets, directory: Path) -> None:
    """Nor one that is a link to another file, or a pipe that nobody writes to."""
    ticket = directory / "gpulease" / digest(TOKEN)
    os.chown(ticket, 12345, 12345)
    with pytest.raises(OutsideFault, match="not a file of root's"):
        tickets.find(TOKEN)
    for replace in (lambda: ticket.symlink_to("/etc/passwd"), lambda: os.mkfifo(ticket)):
        ticket.unlink()
        replace()
        with pytest.raises(OutsideFault):
            tickets.find(TOKEN)


@pytest.mark.parametrize(
    "record",
    [
        [],
        {},
        {**RECORD, "lease": "7"},
        {**RECORD, "mounts": [["/a"]]},
        {**RECORD, "mounts": [["/a", 1, True]]},
        {**RECORD, "devices": None},
    ],
    ids=str,
)
def test_a_ticket_that_cannot_be_read_gives_nothing(
    tickets: Tickets, directory: Path, record: object
) -> None:
    """What is not the agent's is a fault, not an empty ticket."""
    (directory / "gpulease" / digest(TOKEN)).write_text(json.dumps(record))
    with pytest.raises(OutsideFault, match="ticket"):
        tickets.find(TOKEN)
