"""Hold that a run of all tests exercised every name that others build on: `.ci/test` ends with it.

python -m tests.exercised NOTES

A name is exercised where the product did it (recorder.py notes that) in a test of a module that names it. The
one alone happens by accident, in tests of something else; the other alone is a test that made it up. The
doctor's checks have a table of their own (tests/domain/doctor).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.exercised.names import CATEGORIES, ROOT, unnamed

UNDONE = {
    "refusal": "no request is refused by it",
    "problem": "no call is answered with it",
    "error": "no command of gpulease ends with it",
    "event": "the agent does not write it",
    "metric": "it is not served with another value than 0",
    "setting": "the agent does not read it with another value than its default",
}


def unexercised(notes: Iterable[str]) -> Iterator[str]:
    """A complaint for each name that no test exercised, with what to do."""
    done: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for line in notes:
        category, name, module = line.split("\t")
        done[category, name].add(module)
    for category, names in CATEGORIES.items():
        for name in sorted(names()):
            modules = done[category, name] | done[category, f"{name}_count"]  # a histogram's
            if not modules:
                yield f"{category} {name}: {UNDONE[category]} in any test: write one in which that happens"
            elif all(unnamed(category, [name], _text(one)) for one in modules):
                where = ", ".join(sorted(modules)[:3])
                yield f"{category} {name}: comes about in {where}, which do not name it: assert it in one"


@cache
def _text(module: str) -> str:
    return (ROOT / module).read_text(encoding="utf-8")


def main() -> None:
    complaints = list(unexercised(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()))
    if complaints:
        sys.exit("\n".join([*complaints, f"not exercised: {len(complaints)} names (tests/exercised)"]))


if __name__ == "__main__":
    main()
