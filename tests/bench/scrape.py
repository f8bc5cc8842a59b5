"""What one scrape of /metrics carries: bytes and series, with a series for each lease and without."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.clients import Client, grant_body, request
from tests.bench.figures import Figure, Subject, Taken, Turn
from tests.bench.serving import Server, laid_out, serving

NODES = {8: ("mi300x-spx", 32), 63: ("mi300x-cpx", 63)}  # devices: machine, leases
EACH = "with those of each lease"


def figures() -> Iterator[Figure]:
    for devices, (_, leases) in NODES.items():
        yield Figure(f"scrape-{devices}", f"`/metrics` of {devices} devices, {leases} leases", "KiB", EACH)
        yield Figure(f"scrape-{devices}-series", "its series", "", EACH)


def scraped(server: Server, leases: int) -> tuple[float, float]:
    """KiB and series of a scrape of a node with so many leases."""
    client = Client(server.socket)
    for number in range(leases):
        client.grant(grant_body(f"lease-{number}", cu_percent=20, vram_percent=20))
    body = client.call(request("GET", "/metrics")).partition(b"\r\n\r\n")[2]
    series = [line for line in body.splitlines() if line and not line.startswith(b"#")]
    return len(body) / 1024, float(len(series))


def turns() -> Iterator[Turn]:
    while True:
        found: dict[str, Taken] = {}
        for devices, (name, leases) in NODES.items():
            sizes = []
            for each in ("false", "true"):
                with laid_out(name, f"[metrics]\nleases = {each}\n") as words, serving(words) as server:
                    sizes.append(scraped(server, leases))
            (plain, few), (more, many) = sizes
            found[f"scrape-{devices}"] = Taken([plain], [more])
            found[f"scrape-{devices}-series"] = Taken([few], [many])
        yield found


SUBJECTS = {"scrape": Subject("One scrape", tuple(figures()), turns, count=1, warm=0, quick=1)}
