"""Guests in leases, as tests let them in, look at them and start their containers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fake_engine import FakeEngine
from service_builders import GIB, House, admin, order_of, user

from nodeagent.domain.container import NOTE, Container, Engine
from nodeagent.domain.guarantee import Requirement
from nodeagent.domain.lease import AnchorKind, HolderKind, Lease
from nodeagent.domain.request import Request, SliceRequest
from nodeagent.service.guest_records import Guest
from nodeagent.service.hosting import GuestOrder, Hosted
from nodeagent.service.orders import Behalf, Granted

GLIBC = Container(Engine.DOCKER, "glibc-2.36")


@contextmanager
def within(house: House, lease: Lease) -> Iterator[int]:
    """A process in the lease."""
    inside = subprocess.Popen(["sleep", "60"])
    try:
        house.enter(lease, inside.pid)
        yield inside.pid
    finally:
        inside.kill()
        inside.wait()


def taken(house: House, job: str = "42", require: Requirement | None = None) -> Lease:
    """A job of uid 1000, on a node where its lease has a cgroup of the agent's."""
    request = Request((SliceRequest(cus=8, vram_bytes=GIB),), require=require or Requirement())
    order = order_of(holder=(HolderKind.SLURM, job), anchor=AnchorKind.EXTERNAL, request=request)
    outcome = house.agent.grant(admin(), replace(order, behalf=Behalf(1000, 1000)))
    assert isinstance(outcome, Granted)
    return outcome.lease


def host(house: House, lease: Lease, pid: int, held: Container = GLIBC, **more: Any) -> Hosted:
    order = GuestOrder(held, more.pop("require", Requirement()), **more)
    outcome = house.agent.host(user(1000, pid), lease.id, order)
    assert isinstance(outcome, Hosted), outcome
    return outcome


def guests(house: House, lease: Lease) -> list[Guest]:
    return house.containers.guests.of([lease.id])


def look(house: House) -> None:
    house.dock.engines.look(Engine.DOCKER)
    house.look()


def started(house: House, engine: FakeEngine, lease: Lease, pid: int, **more: Any) -> tuple[Hosted, str]:
    """A guest whose container runs."""
    hosted = host(house, lease, pid, **more)
    container = engine.create(hosted.view.labels, status="running")
    look(house)
    return hosted, container


@contextmanager
def noted(note: Path) -> Iterator[None]:
    """A process that has *note* mounted, as in a container."""
    place = f"mount -t tmpfs none /etc && mkdir {Path(NOTE).parent} && touch {NOTE}"
    script = f"{place} && mount --bind {note} {NOTE} && echo ready && exec sleep 60"
    with subprocess.Popen(["unshare", "--mount", "sh", "-ec", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        yield
        child.kill()
