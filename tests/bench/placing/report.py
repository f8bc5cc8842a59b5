"""The report: tests/bench/placement.json, and the tables of docs/placement.md that are made of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
REPORT = ROOT / "tests" / "bench" / "placement.json"
PAGE = ROOT / "docs" / "placement.md"

Report = Mapping[str, Any]


def read() -> Report:
    """The committed report."""
    found: Report = json.loads(REPORT.read_text(encoding="utf-8"))
    return found


def write(report: Report) -> None:
    """Write the report, and its tables into the page."""
    REPORT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables(report).items():
        begin, end = _markers(name)
        text = text.replace(begin + shown(text, name) + end, begin + table + end)
    PAGE.write_text(text, encoding="utf-8")


def shown(page: str, name: str) -> str:
    """What stands between the page's markers of that table."""
    begin, end = _markers(name)
    return page.partition(begin)[2].partition(end)[0]


def _markers(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"


def tables(report: Report) -> Mapping[str, str]:
    """Every table of the page by its marker's name."""
    shared = report["shared"]
    return {
        "delivered": _delivered(report["delivered"]),
        "groups": _groups(shared),
        "refused": _refused(shared),
    }


def _delivered(rows: Sequence[Report]) -> str:
    header = (
        "Devices of",
        "CUs",
        "Sum",
        "Demand",
        "lowest free",
        "`even`",
        "",
        "`exact`",
        "",
        "No CU on an XCC",
    )
    return _table(header, map(_delivered_row, rows))


def _delivered_row(row: Report) -> Sequence[object]:
    found = {name: figures["effective_cus"] for name, figures in row["rules"].items()}
    floor = found["lowest free"]
    stuck = ", ".join(str(figures["stuck"]) for figures in row["rules"].values())
    return (
        " ".join(f"`{name}`" for name in row["machines"]),
        row["cus"],
        "≤ 100 %" if row["capped"] else "any",
        row["demand"],
        floor,
        found["even"],
        more(found["even"], floor),
        found["exact"],
        more(found["exact"], floor),
        stuck,
    )


SIZES = ("≤ 1/4", "≤ 1/2", "< 1", "1", "2", "4", "8")


def _groups(rows: Sequence[Report]) -> str:
    header = (
        *_SCENARIO,
        "GPU time granted",
        "2 linked found",
        "4 linked found",
        "Leases of several",
        "linked",
    )
    return _table(header, map(_groups_row, rows))


def _groups_row(row: Report) -> Sequence[object]:
    found = row["found_percent"]
    return (
        *_scenario(row),
        f"{row['gpu_time_percent']} %",
        f"{found['2']} %",
        f"{found['4']} %",
        *row["groups"],
    )


def _refused(rows: Sequence[Report]) -> str:
    """Of one kind of node only: links change what is refused of nobody who does not insist on them."""
    chosen = [row for row in rows if row["tasks"] == "all" and row["node"] == rows[0]["node"]]
    lines = ((*_scenario(row), *map(row["refused_percent"].get, SIZES)) for row in chosen)
    return _table((*_SCENARIO, *SIZES), lines)


_SCENARIO = ("GPUs of a node", "Tasks", "Nodes", "Policy")


def _scenario(row: Report) -> Sequence[object]:
    name = row["policy"] if row["policy"] == "FGD" else f"`{row['policy']}`"
    return row["node"], row["tasks"], row["nodes"], name


def more(one: float, other: float) -> str:
    """How much *one* is above *other*, in percent."""
    return f"{100 * (one / other - 1):+.0f} %".replace("-", "−")


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
