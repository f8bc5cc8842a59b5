"""What the authorization plugin adds to `docker run`: beside a dockerd without it, in turns.

Run as root: ``python tests/bench/docker_plugin_cost.py``. A run is that of a small image's `true`, to its end.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.docker import images
from tests.docker.guarded import CONTAINER, guarded_host
from tests.docker.host import Host, running_host
from tests.docker.kinds import DOCKER

TURNS, WARM = 20, 2
ALLOWED = 10.0  # milliseconds, of the plugin's in a `docker run`
RUN = ("docker", "run", "--rm", "--network=none", "busybox", "true")


def taken(host: Host, *words: str) -> float:
    """The milliseconds of a command on the host."""
    began = time.perf_counter()
    done = host.run(*words)
    assert done.returncode == 0, done.stderr
    return (time.perf_counter() - began) * 1e3


def judged(host: Host, body: bytes) -> float:
    """The milliseconds of a create that dockerd refuses by itself, for want of the image: judged, and no more."""
    words = ["curl", "-qs", "--unix-socket", host.kind.socket]
    words += ["-H", "Content-Type: application/json", "--data-binary", body.decode()]
    return taken(host, *words, "http://docker/containers/create")


def row(what: str, milliseconds: list[float]) -> str:
    lowest = sorted(milliseconds)[len(milliseconds) // 10]
    return f"{what:48} {median(milliseconds):8.1f} ms {lowest:8.1f} ms"


def main() -> None:
    if reason := DOCKER.missing() or images.missing("busybox"):
        sys.exit(f"docker_plugin_cost: {reason}")
    with ExitStack() as last:
        made = images.archive("busybox", Path(last.enter_context(tempfile.TemporaryDirectory())))
        plain = last.enter_context(running_host(DOCKER))
        guarded = last.enter_context(guarded_host(DOCKER)).host
        for host in (plain, guarded):
            with made.open("rb") as file:
                host.said("import", "-", "busybox", stdin=file)
        turns = [[taken(host, *RUN) for host in (plain, guarded)] for _ in range(WARM + TURNS)][WARM:]
        body = json.dumps({**CONTAINER, "Image": "none", "HostConfig": {"Binds": ["/srv:/srv:ro"]}}).encode()
        creates = [[judged(host, body) for host in (plain, guarded)] for _ in range(TURNS)]
    print(f"{'':48} {'median':>11} {'least tenth':>11}   of {TURNS}")
    for what, both in (("docker run", turns), ("one create, judged", creates)):
        print(row(f"{what}, without the plugin", [without for without, _ in both]))
        print(row(f"{what}, with it", [with_it for _, with_it in both]))
        print(row("added by the plugin", [with_it - without for without, with_it in both]))
    print(f"allowed to a docker run: {ALLOWED:.0f} ms")


if __name__ == "__main__":
    main()
