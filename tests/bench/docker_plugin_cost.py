"""What the authorization plugin adds to `docker run`: beside a dockerd without it, in turns.

Run as root: ``python tests/bench/docker_plugin_cost.py``. A run is that of a small image's `true`, to its
end. A quiet machine is needed for it; the calls to the plugin alone are counted and measured, too.
"""

from __future__ import annotations

import base64
import json
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.docker.guarded import CONTAINER, PLUGIN, Guarded, guarded_host
from tests.docker.host import Host, running_host
from tests.docker.images import IMAGES
from tests.docker.kinds import DOCKER

TURNS, WARM = 20, 2
CALLS = 10  # before and after each of a docker run's requests: _ping, create, attach, wait, start
ALLOWED = 10.0  # milliseconds, of the plugin's in a `docker run`
BODY = json.dumps({**CONTAINER, "Image": "none", "HostConfig": {"Binds": ["/srv:/srv:ro"]}}).encode()
ENCODED = base64.b64encode(BODY).decode()
RUN = ("docker", "run", "--rm", "--network=none", "busybox", "true")


def taken(host: Host, *words: str) -> float:
    """The milliseconds of a command on the host."""
    began = time.perf_counter()
    done = host.run(*words)
    assert done.returncode == 0, done.stderr
    return (time.perf_counter() - began) * 1e3


def judged(host: Host, body: bytes) -> float:
    """The milliseconds of a create that dockerd refuses for want of the image: judged, and no more."""
    words = ["curl", "-qs", "--unix-socket", host.kind.socket]
    words += ["-H", "Content-Type: application/json", "--data-binary", body.decode()]
    return taken(host, *words, "http://docker/containers/create")


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


def row(what: str, milliseconds: list[float]) -> str:
    lowest = sorted(milliseconds)[len(milliseconds) // 10]
    return f"{what:48} {median(milliseconds):8.1f} ms {lowest:8.1f} ms"


def main() -> None:
    if reason := DOCKER.missing() or IMAGES["busybox"].missing():
        sys.exit(f"docker_plugin_cost: {reason}")
    with ExitStack() as last:
        made = IMAGES["busybox"].archive(Path(last.enter_context(tempfile.TemporaryDirectory())))
        plain = last.enter_context(running_host(DOCKER))
        guard = last.enter_context(guarded_host(DOCKER))
        guarded = guard.host
        for host in (plain, guarded):
            with made.open("rb") as file:
                host.said("import", "-", "busybox", stdin=file)
        turns = [[taken(host, *RUN) for host in (plain, guarded)] for _ in range(WARM + TURNS)][WARM:]
        creates = [[judged(host, BODY) for host in (plain, guarded)] for _ in range(TURNS)]
        calls = [called(guard) for _ in range(10 * TURNS)]
    print(f"{'':48} {'median':>11} {'least tenth':>11}   of {TURNS}")
    for what, both in (("docker run", turns), ("one create, judged", creates)):
        print(row(f"{what}, without the plugin", [without for without, _ in both]))
        print(row(f"{what}, with it", [with_it for _, with_it in both]))
        print(row("added by the plugin", [with_it - without for without, with_it in both]))
    print(row("one call of dockerd's to the plugin", calls))
    print(
        row("the calls of a docker run", [sum(calls[at : at + CALLS]) for at in range(0, len(calls), CALLS)])
    )
    print(f"allowed to a docker run: {ALLOWED:.0f} ms")


if __name__ == "__main__":
    main()
