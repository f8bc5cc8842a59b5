"""Print which tests a run left out, grouped by reason. The arguments are pytest's JUnit files."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree  # the file is our own, made a moment ago
from collections import Counter
from pathlib import Path


def left_out(report: Path) -> Counter[tuple[str, str]]:
    """(test directory, reason) to the number of tests skipped there."""
    if not report.stat().st_size:  # pytest stopped before it ran anything
        return Counter()
    skips: Counter[tuple[str, str]] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314
        skipped = case.find("skipped")
        if skipped is not None:
            part = ".".join(case.get("classname", "").split(".")[:2])
            skips[part.replace(".", "/"), skipped.get("message", "no reason given")] += 1
    return skips


def main() -> None:
    skips = sum((left_out(Path(report)) for report in sys.argv[1:]), Counter())
    for (part, reason), count in sorted(skips.items()):
        print(f"left out: {count} in {part}: {reason}")
    print("left out: hardware: no test uses a GPU; drivers are imitated, and no GPU ran a program")


if __name__ == "__main__":
    main()
