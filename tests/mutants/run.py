"""Leave a safeguard out, one at a time, on a copy of the tree: the test that is named for it must fail.

Run with `make mutants`. Rows are in rows/, a file for each area: *file*, *old* and *new* text, and the
*tests* of which one must fail. The copy is tested unchanged first: a test that fails anyway proves nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[2]
ROWS = Path(__file__).with_name("rows")
PAGE = ROOT / "docs" / "enforcement.md"
BEGIN, END = "<!-- mutants: begin -->\n", "<!-- mutants: end -->\n"


NOTICED, MISSED, UNPROVED = "noticed", "MISSED", "UNPROVED"


class RowFault(Exception):
    """A row that has fallen behind the code."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One safeguard left out, and who must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, tree: Path) -> None:
        """Change *tree*; a text that is not there exactly once is a row that has fallen behind the code."""
        path = tree / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise RowFault(f"{self.file} holds its text {text.count(self.old)} times, not once")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


def mutants() -> tuple[Mutant, ...]:
    """Every row, area by area."""
    areas = [tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(ROWS.glob("*.toml"))]
    rows = [row for area in areas for row in area["mutant"]]
    return tuple(Mutant(**{**row, "tests": tuple(row["tests"])}) for row in rows)


def copy_of_tree(to: Path) -> None:
    """The files that git knows or would add, as they are now, and what the build made of the C sources."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    built = [path.relative_to(ROOT) for path in (ROOT / "nodeagent" / "hook").glob("*gpulease*")]
    for name in {*map(Path, filter(None, listed.decode().split("\0"))), *built}:
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def rebuild(tree: Path, row: Mutant) -> None:
    """Compile the C parts of the copy anew where the row is in one of them."""
    if row.file.endswith((".c", ".h")):
        subprocess.run([sys.executable, "-m", "nodeagent.hook.build"], cwd=tree, check=True)


def failure(tree: Path, tests: tuple[str, ...]) -> str | None:
    """What pytest says where one of *tests* fails in *tree*; a run that collects nothing is an error."""
    env = {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'client/gpulease'}"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", *tests],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    return None if done.returncode == 0 else f"{done.stdout[-3000:]}{done.stderr[-1000:]}"


def verdict(tree: Path, row: Mutant) -> tuple[str, str]:
    """What came of *row* in *tree*, which is afterwards as before; and, where it proves nothing, why."""
    if why := failure(tree, row.tests):
        return UNPROVED, f"its tests fail without the mutation:\n{why}"
    original = (tree / row.file).read_bytes()
    try:
        row.apply(tree)
        rebuild(tree, row)
        return (NOTICED, "") if failure(tree, row.tests) else (MISSED, "its tests pass all the same")
    except (RowFault, subprocess.CalledProcessError) as fault:
        return UNPROVED, str(fault)
    finally:
        (tree / row.file).write_bytes(original)
        rebuild(tree, row)


def verdicts(rows: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, str, str]]:
    """Each row with its verdict, as they come; *jobs* copies of the tree are at work at once."""
    trees: SimpleQueue[Path] = SimpleQueue()

    def judged(row: Mutant) -> tuple[Mutant, str, str]:
        tree = trees.get()
        try:
            return row, *verdict(tree, row)
        finally:
            trees.put(tree)

    with tempfile.TemporaryDirectory(prefix="nodeagent-mutants-") as place:
        for number in range(min(jobs, len(rows))):
            tree = Path(place) / str(number)
            copy_of_tree(tree)
            trees.put(tree)
        with ThreadPoolExecutor(jobs) as pool:
            for done in as_completed([pool.submit(judged, row) for row in rows]):
                yield done.result()


def table(rows: tuple[Mutant, ...]) -> str:
    """The rows as docs/enforcement.md shows them."""
    lines = ["| Left out | In | Noticed by |", "|---|---|---|"]
    lines += [
        f"| {row.name} | `{row.file}` | {'<br>'.join(f'`{test}`' for test in row.tests)} |" for row in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Exit 0 only if every mutant was noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table into docs/enforcement.md")
    parser.add_argument("names", nargs="*", help="only the rows whose name holds one of these")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="rows at a time")
    args = parser.parse_args()
    rows = [row for row in mutants() if not args.names or any(name in row.name for name in args.names)]
    unnoticed = []
    for row, said, why in verdicts(rows, args.jobs):
        print(f"{said:8} {row.name}{why and f': {why}'}", flush=True)
        unnoticed += [] if said == NOTICED else [row.name]
    if args.write and not unnoticed:
        write()
    print(f"{len(rows) - len(unnoticed)} of {len(rows)} mutants noticed")
    return 1 if unnoticed else 0


def write() -> None:
    """Put the table of all rows into the page."""
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}{table(mutants())}{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
