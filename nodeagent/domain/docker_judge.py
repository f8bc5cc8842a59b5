"""The judgement of docker's calls: what reaches a GPU needs a live lease's ticket, the rest passes.

Bodies are judged by allow-list and with their reading settled first (`docker_body`), so that neither an
unknown key nor a second reading passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from nodeagent.domain import docker_mounts as mounting
from nodeagent.domain.container import LEASE_LABEL, is_id
from nodeagent.domain.docker_body import Object, Request, known, mapping, read_object
from nodeagent.domain.docker_grounds import Grounds
from nodeagent.domain.docker_host import judge_host
from nodeagent.domain.docker_keys import CREATE_KEYS, EXEC_KEYS, UPDATE_EMPTY, UPDATE_KEYS, VOLUME_KEYS
from nodeagent.domain.docker_routes import BUILDKIT_REFUSED, Call, Route
from nodeagent.domain.errors import InvalidField

_EMPTY: tuple[object, ...] = (None, False, "", [], {})


def read_body(route: Route, request: Request) -> Object:
    """The body by which a *request* of that *route* is judged; an empty one where docker reads none.

    Raises:
        InvalidField: it cannot be read, or not in one way only.
    """
    if route.call is Call.RENAME and not request.empty():
        raise InvalidField("the request's body", "there is none with a rename: say so with Content-Length: 0")
    if route.call is Call.BUILD and request.form():
        raise InvalidField("the request's body", "options belong into the address")
    if route.call in (Call.BUILD, Call.RENAME):
        return {}
    if route.call is Call.START and request.bare():
        return {}
    return read_object(request)


def why_not(route: Route, body: Object, grounds: Grounds) -> str | None:
    """Why the call is refused; None where it passes.

    Raises:
        InvalidField: something in *body* is of another type than docker's.
    """
    judge = _JUDGES.get(route.call)
    return None if judge is None else next(judge(route, body, grounds), None)


def _create(route: Route, body: Object, grounds: Grounds) -> Iterator[str]:
    # Without a HostConfig, dockerd before 26 reads one from the keys beside it: they are unknown here.
    yield from known("the container", body, CREATE_KEYS)
    yield from _name(route)
    lease = mapping("Labels", body.get("Labels")).get(LEASE_LABEL)
    if grounds.ticket and lease is not None and lease != str(grounds.ticket.lease):
        yield "the ticket is another lease's than the label says"
    yield from mounting.volumes(body.get("Volumes"))
    yield from judge_host(mapping("HostConfig", body.get("HostConfig")), grounds)


def _update(_route: Route, body: Object, _grounds: Grounds) -> Iterator[str]:
    yield from known("the update", body, UPDATE_KEYS)
    for key in UPDATE_EMPTY & body.keys():
        if body[key] not in _EMPTY:
            yield f"{key} of a container stays as it was created"


def _exec(_route: Route, body: Object, _grounds: Grounds) -> Iterator[str]:
    yield from known("the command", body, EXEC_KEYS)
    if body.get("Privileged") not in _EMPTY:
        yield "a privileged command reaches every GPU"


def _start(route: Route, body: Object, _grounds: Grounds) -> Iterator[str]:
    if any(name.lower().startswith("checkpoint") for name, _ in route.options):
        yield "a checkpoint brings open devices back"
    if body:
        yield "a container starts as it was created: no body"


def _rename(route: Route, _body: Object, _grounds: Grounds) -> Iterator[str]:
    yield from _name(route)


def _name(route: Route) -> Iterator[str]:
    if any(is_id(value.removeprefix("/")) for _, value in route.options):
        yield "a name like a container's id could be taken for it"


def _volume(_route: Route, body: Object, _grounds: Grounds) -> Iterator[str]:
    yield from known("the volume", body, VOLUME_KEYS)
    yield from mounting.driver(body.get("Driver"), body.get("DriverOpts"))
    if body.get("ClusterVolumeSpec") not in _EMPTY:
        yield "volumes of a swarm are mounted where nobody judges them"


def _build(route: Route, _body: Object, grounds: Grounds) -> Iterator[str]:
    for name, value in route.options:
        if name == "version" and value != "1" and not grounds.buildkit:
            yield BUILDKIT_REFUSED
        if name in _AS_IN_HOST:
            yield from judge_host({_AS_IN_HOST[name]: value}, grounds)


_AS_IN_HOST: Mapping[str, str] = {"cgroupparent": "CgroupParent", "networkmode": "NetworkMode"}
_JUDGES: Mapping[Call, Callable[[Route, Object, Grounds], Iterator[str]]] = {
    Call.CREATE: _create,
    Call.UPDATE: _update,
    Call.EXEC: _exec,
    Call.START: _start,
    Call.RENAME: _rename,
    Call.VOLUME: _volume,
    Call.BUILD: _build,
}
