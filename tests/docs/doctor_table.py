"""The table of checks in docs/doctor.md, from the checks themselves."""

from __future__ import annotations

import sys
from pathlib import Path

from nodeagent.domain.doctor import CHECKS, Check

PAGE = Path(__file__).resolve().parents[2] / "docs" / "doctor.md"
BEGIN, END = "<!-- checks: begin -->\n", "<!-- checks: end -->\n"


def table(checks: tuple[Check, ...] = CHECKS) -> str:
    """The checks as the page shows them, a row each."""
    lines = ["| Check | Area | What must hold | Fix | Seen without it |", "|---|---|---|---|---|"]
    for one in checks:
        repository, _, number = one.issue.partition("#")
        report = f"[{one.issue}](https://github.com/{repository}/issues/{number})"
        lines.append(f"| `{one.name}` | {one.area} | {one.what} | {_plain(one.fix)} | {report} |")
    return "\n".join(lines) + "\n"


def shown(page: str) -> str:
    """What stands between the page's markers."""
    return page.partition(BEGIN)[2].partition(END)[0]


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;").replace("*", "\\*")


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    if "--write" in sys.argv:
        PAGE.write_text(text.replace(BEGIN + shown(text) + END, BEGIN + table() + END), encoding="utf-8")
    elif shown(text) != table():
        sys.exit("docs/doctor.md has fallen behind the checks: run `make enforcement`")
