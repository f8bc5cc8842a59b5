"""What the authorization plugin adds to `docker run`: beside a dockerd without it, in turns.

A run is that of a small image's `true`, to its end. What the plugin adds is lost in its noise, so its answers
are measured by themselves, too, each as a create's, which is the dearest.
"""

from __future__ import annotations

import base64
import json
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.bench.figures import Figure, Subject, Taken, Target, Turn
from tests.docker.guarded import CONTAINER, PLUGIN, Guarded, guarded_host
from tests.docker.host import Host, running_host
from tests.docker.images import IMAGES
from tests.docker.kinds import DOCKER

CALLS = 10  # before and after each of a docker run's requests: _ping, create, attach, wait, start
FIGURES = (
    Figure("plugin-run", "docker run with the plugin", "ms", "without it"),
    Figure("plugin-answers", "the plugin's ten answers to one", "ms", "the whole run", Target("value", 10)),
)
BODY = json.dumps({**CONTAINER, "Image": "none", "HostConfig": {"Binds": ["/srv:/srv:ro"]}}).encode()
ENCODED = base64.b64encode(BODY).decode()
RUN = ("docker", "run", "--rm", "--network=none", "busybox", "true")


def taken(host: Host, *words: str) -> float:
    """The milliseconds of a command on the host."""
    began = time.perf_counter()
    done = host.run(*words)
    assert done.returncode == 0, done.stderr
    return (time.perf_counter() - began) * 1e3


def called(guarded: Guarded) -> float:
    """The milliseconds in which the plugin answers dockerd about one create, as in each of a run's calls."""
    said = {"RequestMethod": "POST", "RequestUri": "/v1.41/containers/create", "RequestBody": ENCODED}
    headers = {"Content-Type": "application/json", "Content-Length": str(len(BODY))}
    words = json.dumps({**said, "RequestHeaders": headers}).encode()
    head = f"POST /AuthZPlugin.AuthZReq HTTP/1.1\r\nHost: x\r\nContent-Length: {len(words)}\r\n\r\n"
    began = time.perf_counter()
    with socket.socket(socket.AF_UNIX) as own:
        own.connect(str(guarded.host.path(PLUGIN)))
        own.sendall(head.encode() + words)
        answer = b""
        while part := own.recv(65536):
            answer += part
    assert b'"Allow": true' in answer, answer
    return (time.perf_counter() - began) * 1e3


def turns() -> Iterator[Turn]:
    with ExitStack() as last:
        made = IMAGES["busybox"].archive(Path(last.enter_context(tempfile.TemporaryDirectory())))
        plain = last.enter_context(running_host(DOCKER))
        guard = last.enter_context(guarded_host(DOCKER))
        for host in (plain, guard.host):
            with made.open("rb") as file:
                host.said("import", "-", "busybox", stdin=file)
        while True:
            without, with_it = (taken(host, *RUN) for host in (plain, guard.host))
            yield {
                "plugin-run": Taken([with_it], [without]),
                "plugin-answers": Taken([sum(called(guard) for _ in range(CALLS))], [with_it]),
            }


def missing() -> str | None:
    return DOCKER.missing() or IMAGES["busybox"].missing()


SUBJECTS = {
    "docker-plugin": Subject(
        "docker's authorization plugin", FIGURES, turns, count=10, warm=2, missing=missing
    )
}
