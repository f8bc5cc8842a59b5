"""What a fleet costs, from the measured figures of one node: the table of docs/scale.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

NODES = 10_000
SCRAPE_SECONDS = 60
KIB, GIB = 1 << 10, 1 << 30


def table(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """The rows whose *figures*, by name, were measured."""
    lines = ["| of one node | measured | by | of 10,000 nodes | derived as |", "|---|---|---|---|---|"]
    try:
        lines += list(_rows(figures))
    except KeyError:
        return "Not measured yet.\n"
    return "\n".join(lines) + "\n"


def _rows(figures: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for devices, leases in ((8, 32), (63, 63)):
        for side, what in (("measured", "without"), ("its", "with")):
            of = f"{devices} devices, {leases} leases, {what} a series for each lease"
            series = _of(figures, f"scrape-{devices}-series", side)
            each = series * NODES / SCRAPE_SECONDS
            yield _row(
                f"series of a scrape: {of}",
                f"{series:,.0f}",
                f"scrape-{devices}-series",
                f"{series * NODES / 1e6:,.2f} million, {each:,.0f} samples a second",
                f"× nodes; ÷ {SCRAPE_SECONDS} s",
            )
            kib = _of(figures, f"scrape-{devices}", side)
            yield _row(
                f"body of a scrape: {of}",
                f"{kib:,.1f} KiB",
                f"scrape-{devices}",
                f"{kib * NODES / KIB / SCRAPE_SECONDS:,.1f} MiB a second",
                f"× nodes ÷ {SCRAPE_SECONDS} s",
            )
    milliseconds = _of(figures, "metrics")
    yield _row(
        "time of a scrape: 63 devices, 640 leases",
        f"{milliseconds:,.1f} ms",
        "metrics",
        f"{milliseconds / 1e3 / SCRAPE_SECONDS:.3%} of a core on each",
        f"÷ {SCRAPE_SECONDS} s",
    )
    for name, what in (("idle-processor", "no lease"), ("lived-processor", "63 devices, 640 leases")):
        percent = _of(figures, name)
        yield _row(
            f"processor time of an idle agent: {what}",
            f"{percent:.2g} % of a core",
            name,
            f"{percent / 100 * NODES:,.0f} cores' worth, each on its own node",
            "× nodes",
        )
    for name, what in (("memory", "no lease"), ("lived-memory", "63 devices, 640 leases")):
        mib = _of(figures, name)
        yield _row(
            f"memory (PSS): {what}",
            f"{mib:,.0f} MiB",
            name,
            f"{mib * NODES * KIB * KIB / GIB:,.0f} GiB",
            "× nodes",
        )
    for name, what in (("start-empty", "nothing in it"), ("start", "640 live and 10,000 past leases")):
        seconds = _of(figures, name)
        yield _row(
            f"exec to first grant: {what}",
            f"{seconds:.2g} s",
            name,
            f"{seconds * NODES / 100 / 60:,.1f} minutes, 100 nodes at a time",
            "× nodes ÷ 100",
        )


def _of(figures: Mapping[str, Mapping[str, Any]], name: str, side: str = "measured") -> float:
    return float(figures[name][side]["median"])


def _row(what: str, measured: str, by: str, fleet: str, how: str) -> str:
    return f"| {what} | {measured} | `{by}` | {fleet} | {how} |"
