"""Which of docker's calls pass at once, are judged, or are refused whatever they carry."""

from __future__ import annotations

import pytest

from nodeagent.domain.docker_routes import Call, Route, route_of


@pytest.mark.parametrize(
    "line",
    """
    HEAD /_ping
    GET /_ping
    GET /v1.50/containers/json?all=1&filters=%7B%7D
    GET /v1.50/containers/c1/json
    GET /v1.50/containers/c1/logs?stdout=1
    GET /containers/c1/attach/ws
    GET /images/registry.example/a/b:1/json
    GET /v1.50/info
    GET /events
    GET /networks
    GET /volumes
    GET /swarm
    POST /auth
    POST /v1.50/images/create?fromImage=busybox&tag=1
    POST /images/a/b/push
    POST /images/load
    POST /commit?container=c1
    POST /build/prune
    POST /v1.50/containers/c1/attach?stream=1
    POST /containers/c1/wait?condition=next-exit
    POST /containers/c1/stop
    POST /containers/c1/restart
    POST /exec/abc/start
    POST /networks/create
    PUT /containers/c1/archive?path=/tmp
    HEAD /containers/c1/archive?path=/tmp
    DELETE /containers/c1?v=1
    DELETE /images/a/b:1
    OPTIONS /containers/json
    """.strip().splitlines(),
)
def test_an_ordinary_day_passes(line: str) -> None:
    """Calls that reach no GPU pass without a look at their bodies."""
    assert route_of(*line.split()) == Route(Call.ORDINARY)


@pytest.mark.parametrize(
    ("path", "call"),
    [
        ("/containers/create", Call.CREATE),
        ("/v1.41/containers/create?name=x", Call.CREATE),
        ("/v1.50/containers/c%72eate", Call.CREATE),
        ("/containers/c1/update", Call.UPDATE),
        ("/containers/c1/exec", Call.EXEC),
        ("/containers/c1/start", Call.START),
        ("/containers/create/start", Call.START),
        ("/containers/c1/rename?name=y", Call.RENAME),
        ("/volumes/create", Call.VOLUME),
        ("/build?t=x", Call.BUILD),
    ],
)
def test_calls_that_can_reach_a_gpu_are_judged(path: str, call: Call) -> None:
    """However the path is spelled, it is taken for what dockerd takes it for."""
    route = route_of("POST", path)
    assert isinstance(route, Route)
    assert route.call is call


@pytest.mark.parametrize(
    "line",
    """
    POST /grpc
    POST /session
    POST /v1.41/session
    POST /plugins/pull
    POST /plugins/x/enable
    POST /plugins/x/set
    DELETE /plugins/x
    POST /swarm/init
    POST /swarm/join
    POST /services/create
    POST /services/x/update
    POST /nodes/x/update
    POST /secrets/create
    POST /configs/create
    PUT /volumes/v1
    POST /containers/c1/checkpoints
    POST /containers/c1/copy
    POST /v1.23/containers/c1/start
    POST /v1.12/containers/create
    POST //containers/create
    POST /./containers/create
    POST /containers/../containers/create
    POST /containers/%2e%2e/create
    POST /containers//create
    POST /images/../containers/create/push
    POST /images//x/tag
    DELETE /images/./x
    POST /containers/create/
    POST /v1.41/v1.41/containers/create
    POST /v1.41.2/containers/create
    POST /v2/containers/create
    POST http://docker/containers/create
    POST containers/create
    POST /containers/%zz/start
    POST /containers/%ff/start
    POST /containers/%00/kill
    POST /containers/c1%2fexec/start/x
    POST /containers/a/b/exec
    POST /containers/create?name=a;name=b
    POST /containers/create?name=%zz
    POST /libpod/containers/create
    post /containers/create
    PATCH /containers/c1
    GET /grpc
    GET /debug/pprof
    GET /
    CONNECT /containers/create
    """.strip().splitlines(),
)
def test_what_is_not_listed_is_refused(line: str) -> None:
    """Other ways around the judged calls, ways to spell them twice, and calls that nobody knows."""
    assert isinstance(route_of(*line.split()), str)
