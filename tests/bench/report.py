"""The report of all figures: a JSON file, the table in docs/performance.md made of it, and what got worse."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench import scale

ROOT = Path(__file__).resolve().parents[2]
FIGURES = Path(__file__).with_name("figures.json")
DOCS = ROOT / "docs"
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"
WORSE = 1.25  # times the committed ratio

Document = dict[str, Any]


def machine(state: Path) -> dict[str, Any]:
    """What the figures were measured on; *state* is where the agents keep theirs."""
    found = subprocess.run(
        ["findmnt", "--noheadings", "--output", "FSTYPE,SOURCE", "--target", state],
        capture_output=True,
        text=True,
        check=False,
    )
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": model[1] if model else platform.machine(),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "state": " ".join(found.stdout.split()) or "unknown",
    }


def read(path: Path = FIGURES) -> Document:
    """The report in *path*; an empty one where there is none."""
    if not path.exists():
        return {"machine": {}, "subjects": {}}
    found: Document = json.loads(path.read_text(encoding="utf-8"))
    return found


def put(report: Document, name: str, title: str, figures: Iterable[Mapping[str, Any]]) -> None:
    """Put the *figures* of subject *name* in place of what it had."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    load = round(os.getloadavg()[0], 1)
    report["subjects"][name] = {"title": title, "at": now, "load": load, "figures": list(figures)}


def leave_out(report: Document, name: str, title: str, why: str) -> None:
    """Say that subject *name* was not measured."""
    report["subjects"][name] = {"title": title, "left_out": why, "figures": []}


def order(report: Document, names: Iterable[str]) -> None:
    """Put the subjects in the order of *names*, and drop those that are no more."""
    report["subjects"] = {name: report["subjects"][name] for name in names if name in report["subjects"]}


def write(report: Document, path: Path = FIGURES, docs: Path = DOCS) -> None:
    """Write the report, and its two tables in the documentation."""
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for name, made in tables(report).items():
        page = docs / name
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace(BEGIN + shown(text) + END, BEGIN + made + END), encoding="utf-8")


def tables(report: Document) -> dict[str, str]:
    """What is generated of each page of the documentation."""
    return {"performance.md": table(report), "scale.md": scale.table(figures(report))}


def shown(text: str) -> str:
    """What stands between a page's markers."""
    return text.partition(BEGIN)[2].partition(END)[0]


def table(report: Document) -> str:
    """The report as the page shows it."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Document) -> Iterator[str]:
    on = report["machine"]
    if on:
        yield f"Measured on {on['cores']} cores ({on['processor']}), Linux {on['kernel']},"
        yield f"Python {on['python']}; the agents' state on {on['state']}."
    yield from _targets(list(figures(report).values()))
    for subject in report["subjects"].values():
        yield ""
        yield f"### {subject['title']}"
        yield ""
        if why := subject.get("left_out"):
            yield f"Left out: {why}."
            continue
        yield f"Measured {subject['at']} UTC, at a load of {subject['load']:g}."
        yield ""
        yield "| name | | median (p10 to p90, n) | beside | whose is | ratio | target | |"
        yield "|---|---|---|---|---|---|---|---|"
        yield from (_row(one) for one in subject["figures"])


def _targets(every: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    judged = [one for one in every if one["met"] is not None]
    missed = [f"`{one['name']}`" for one in judged if not one["met"]]
    yield ""
    yield f"Of {len(judged)} targets {len(judged) - len(missed)} are met."
    if missed:
        yield f"Not met: {', '.join(missed)}."


def _row(one: Mapping[str, Any]) -> str:
    beside, its = one["beside"] or "", one["its"]
    ratio = "" if one["ratio"] is None else f"{_number(one['ratio'])} ×"
    if "above" in (one["target"] or ""):
        ratio = f"{amount(one['above'], one['unit'])} above"
    met = {None: "", True: "met", False: "**not met**"}[one["met"]]
    cells = [
        f"`{one['name']}`",
        one["says"],
        _spread(one["measured"], one["unit"]),
        beside,
        "" if its is None else amount(its["median"], one["unit"]),
        ratio,
        one["target"] or "",
        met,
    ]
    return "| " + " | ".join(cells) + " |"


def _spread(of: Mapping[str, Any], unit: str) -> str:
    middle = amount(of["median"], unit)
    if of["n"] == 1:
        return middle
    return f"{middle} ({_number(of['p10'])} to {_number(of['p90'])}, {of['n']})"


def amount(value: float, unit: str) -> str:
    return f"{_number(value)} {unit}".rstrip()


def _number(value: float) -> str:
    """Three digits, and never an exponent."""
    return f"{float(f'{value:.3g}'):,.10g}"


def figures(report: Document) -> dict[str, Mapping[str, Any]]:
    """Every figure of a report by its name."""
    return {one["name"]: one for subject in report["subjects"].values() for one in subject["figures"]}


def worse(now: Mapping[str, Any], before: Mapping[str, Any] | None) -> str | None:
    """What to say of a figure whose ratio is more than a quarter above the committed one."""
    if before is None or not before["ratio"] or now["ratio"] is None:
        return None
    if now["ratio"] <= WORSE * before["ratio"]:
        return None
    return (
        f"{now['name']}: {now['ratio']:.3g} × {now['beside']}, which was {before['ratio']:.3g} ×:"
        f" {now['ratio'] / before['ratio'] - 1:.0%} worse"
    )
