#!/usr/bin/env python3
"""Measure what docs/performance.md tells.

python tests/bench/run.py                    every figure, a table on the terminal
python tests/bench/run.py --list             their names
python tests/bench/run.py grant-1 start      these figures, or all of a subject, alone
python tests/bench/run.py --quick NAME       a few turns of it: for a first look
python tests/bench/run.py --write [NAME...]  into figures.json and docs/performance.md too
python tests/bench/run.py --tables           the pages' tables anew, of figures.json
python tests/bench/run.py --check            the guarded ratios beside the committed ones; 1: one got worse
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import report
from tests.bench.figures import Figure, Result, Subject, Taken, document
from tests.bench.subjects import SUBJECTS

CHECK_TURNS = 5
LONGEST = 600  # seconds of one subject; then it hangs, and the others are to be measured


def chosen(names: Sequence[str], guarded: bool = False) -> dict[str, list[Figure]]:
    """The figures to measure by subject: all, those named, or those of a subject that is named."""
    known = {
        name for subject, of in SUBJECTS.items() for name in (subject, *(one.name for one in of.figures))
    }
    if unknown := sorted(set(names) - known):
        sys.exit(f"no figure or subject: {', '.join(unknown)}; --list shows them")
    found = {
        name: [
            one
            for one in subject.figures
            if (not names or {name, one.name} & set(names)) and (one.guarded or not guarded)
        ]
        for name, subject in SUBJECTS.items()
    }
    return {name: figures for name, figures in found.items() if figures}


def measured(subject: Subject, figures: Collection[Figure], turns: int) -> list[Result]:
    """The results of *figures* after so many turns of their subject."""
    taken: dict[str, list[Taken]] = {one.name: [] for one in figures}
    with closing(subject.turns()) as every:  # type: ignore[type-var]
        for turn in islice(every, subject.warm, subject.warm + turns):
            for name, one in turn.items():
                if name in taken:
                    taken[name].append(one)
            print(".", end="", flush=True, file=sys.stderr)
    return [Result.of(one, taken[one.name]) for one in figures if taken[one.name]]


def measure(name: str, figures: Collection[Figure], turns: int | None = None) -> list[dict[str, Any]]:
    """The same as JSON values, told on the terminal."""
    subject = SUBJECTS[name]
    began = time.monotonic()
    print(f"{name} ", end="", flush=True, file=sys.stderr)
    signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(LONGEST)
    try:
        found = [document(one) for one in measured(subject, figures, turns or subject.count)]
    finally:
        signal.alarm(0)
    print(f" {time.monotonic() - began:.0f} s", file=sys.stderr)
    for one in found:
        print(line(one), flush=True)
    return found


def _hangs(*_: object) -> None:
    raise TimeoutError(f"no end after {LONGEST} s")


def line(one: Mapping[str, Any]) -> str:
    """A figure for the terminal."""
    of, unit = one["measured"], one["unit"]
    text = f"  {one['name']:24} {report.amount(of['median'], unit):>12}"
    text += f"  ({of['p10']:.3g} to {of['p90']:.3g}, {of['n']})"
    if one["its"] is not None:
        text += f"; {one['beside']}: {report.amount(one['its']['median'], unit)}"
    if one["ratio"] is not None:
        text += f"; {one['ratio']:.3g} ×, {one['above']:+.3g}"
    if one["target"]:
        text += f"; meant {one['target']}{'' if one['met'] else ': NOT MET'}"
    return text


def everything(names: Sequence[str], *, quick: bool, write: bool) -> int:
    """Measure what is chosen; 1 if a subject failed. What was measured by then is written all the same."""
    told = report.read() if write else {"machine": {}, "subjects": {}}
    told["machine"] = report.machine(Path(tempfile.gettempdir()))
    failed = []
    for name, figures in chosen(names).items():
        subject = SUBJECTS[name]
        if write:  # a subject's figures are of one time
            figures = list(subject.figures)
        if why := subject.missing():
            print(f"{name}: left out: {why}", file=sys.stderr)
            report.leave_out(told, name, subject.title, why)
            continue
        try:
            report.put(told, name, subject.title, measure(name, figures, subject.quick if quick else None))
        except Exception:  # the others can be measured all the same
            traceback.print_exc()
            failed.append(name)
        if write:
            report.order(told, SUBJECTS)
            report.write(told)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def check(names: Sequence[str]) -> int:
    """Measure the guarded figures; 1 if a ratio is worse twice than the committed one."""
    before, complaints = report.figures(report.read()), []
    for name, figures in chosen(names, guarded=True).items():
        if SUBJECTS[name].missing():
            continue
        if again := bad(measure(name, figures, CHECK_TURNS), before):
            print(f"{name}: once more: {'; '.join(again.values())}", file=sys.stderr)
            few = [one for one in figures if one.name in again]
            complaints += bad(measure(name, few, 2 * CHECK_TURNS), before).values()
    print("\n".join(complaints) or "no ratio is more than 25 % worse than the committed one")
    return 1 if complaints else 0


def bad(found: Sequence[Mapping[str, Any]], before: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What to say of those that got worse."""
    said = {one["name"]: report.worse(one, before.get(one["name"])) for one in found}
    return {name: text for name, text in said.items() if text}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="the figures' names")
    parser.add_argument("--quick", action="store_true", help="a few turns of each")
    parser.add_argument("--write", action="store_true", help="into figures.json and docs/performance.md too")
    parser.add_argument("--tables", action="store_true", help="write the pages' tables of figures.json anew")
    parser.add_argument("--check", action="store_true", help="compare the ratios with the committed ones")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        as_installed(Path(directory))
        return run(given)


def as_installed(directory: Path) -> None:
    """Have what is measured find what an installation has: compiled code, and no library of the tests alone.

    structlog loads rich where it is, which is 10 MiB; *directory* is for the runner alone to write.
    """
    os.environ["PYTHONPYCACHEPREFIX"] = str(directory)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    absent = directory / "absent"
    absent.mkdir()
    (absent / "rich.py").write_text("raise ImportError('not installed')\n", encoding="utf-8")
    os.environ["PYTHONPATH"] = str(absent)


def run(given: argparse.Namespace) -> int:
    """What the command line says."""
    if given.list:
        for name, subject in SUBJECTS.items():
            print(name, *(one.name for one in subject.figures))
        return 0
    if given.tables:
        report.write(report.read())
        return 0
    if given.check:
        return check(given.names)
    return everything(given.names, quick=given.quick, write=given.write)


if __name__ == "__main__":
    sys.exit(main())
