"""Fail when a wheel in the directory given lacks what an installed agent or client needs at run time."""

from __future__ import annotations

import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

WANTED = {
    "nodeagent": (
        "nodeagent/cli/main.py",
        "nodeagent/api/dashboard/page.html",
        "nodeagent/api/dashboard/dashboard.css",
        "nodeagent/api/dashboard/dashboard.js",
        "nodeagent/hook/libgpulease.so",
        "nodeagent/hook/gpulease-supervisor",
        "nodeagent/migrations/env.py",
        "nodeagent/migrations/versions/*_*.py",
        "nodeagent/machines/*.json*",
        "*.dist-info/entry_points.txt",
    ),
    "gpulease": ("gpulease/cli.py", "gpulease/py.typed", "*.dist-info/entry_points.txt"),
}


def missing(wheel: Path, patterns: tuple[str, ...]) -> list[str]:
    """The patterns that no file of *wheel* matches."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    return [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in names)]


def main() -> int:
    directory, failed = Path(sys.argv[1]), False
    for package, patterns in WANTED.items():
        wheels = sorted(directory.glob(f"{package}-*.whl"))
        if len(wheels) != 1:
            print(f"{directory}: expected one wheel of {package}, found {len(wheels)}")
            failed = True
            continue
        absent = missing(wheels[0], patterns)
        print(f"{wheels[0]}: " + (f"lacks {', '.join(absent)}" if absent else "complete"))
        failed = failed or bool(absent)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
