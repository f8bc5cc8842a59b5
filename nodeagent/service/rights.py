"""Who may do what: one place, asked by every use case."""

from __future__ import annotations

from nodeagent.domain.errors import NotAllowed
from nodeagent.domain.lease import AnchorKind, HolderKind, Lease
from nodeagent.domain.request import Priority
from nodeagent.service.orders import Caller, Order


def owns_nothing(caller: Caller) -> bool:
    """Whether the caller is the root of some container: uid 0, and yet none of root's things are its own."""
    return caller.uid == 0 and not caller.administrator


def owns(caller: Caller, lease: Lease) -> bool:
    """Whether *lease* is the caller's to act on."""
    return caller.administrator or (lease.holder.uid == caller.uid and not owns_nothing(caller))


def must_own(caller: Caller, lease: Lease) -> None:
    if not owns(caller, lease):
        raise NotAllowed(f"lease {lease.id} is not yours")


def must_administer(caller: Caller) -> None:
    if not caller.administrator:
        raise NotAllowed("only root and the administrators' group may do this")


def must_be_allowed(
    caller: Caller,
    order: Order,
    queues: Priority = Priority.NORMAL,
    line: Priority = Priority.NORMAL,
) -> None:
    """Holder kinds slurm and docker, and anchors that only a caller ends, come from administrators.

    A process holds for itself or for the one that it adopts, whoever asks: its end is the lease's. Hardware
    queues of others than administrators have the priority *queues* at most, places in the line *line*.
    """
    if order.holder_kind is HolderKind.PROCESS and order.holder_id != str(order.anchor.pid or caller.pid):
        raise NotAllowed("holder.id: a process holds only for itself, or for one that it adopts")
    if caller.administrator:
        return
    if order.behalf is not None:
        raise NotAllowed("only an administrator may ask on behalf of another user")
    if owns_nothing(caller):
        raise NotAllowed("root of another namespace is not this node's root: ask as the user on the node")
    if order.holder_kind in (HolderKind.SLURM, HolderKind.DOCKER):
        raise NotAllowed(f"holder.kind {order.holder_kind}: only an administrator may hold for it")
    if order.anchor.kind is AnchorKind.EXTERNAL:
        raise NotAllowed("anchor.kind external: only an administrator may hold without a proof of life")
    if order.request.queue_priority.above(queues):
        asked = order.request.queue_priority
        raise NotAllowed(f"queue_priority {asked}: who is no administrator may ask for {queues} at most")
    if order.request.priority.above(line):
        raise NotAllowed(
            f"priority {order.request.priority}: who is no administrator may ask for {line} at most"
        )
