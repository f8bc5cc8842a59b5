"""Write requirements/*.txt from what .venv has. Run it there after an upgrade that passed the tests."""

from __future__ import annotations

import configparser
import importlib.metadata as installed
import sys
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
BUILD = ("setuptools",)
OLDEST_PYTHON = "3.11.2"  # Debian 12's


def closure(wanted: Iterable[str]) -> dict[str, str]:
    """Every distribution that *wanted* brings, itself included: canonical name to version."""
    found: dict[str, str] = {}
    queue = [Requirement(line) for line in wanted]
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if name in found:
            continue
        found[name] = installed.version(name)
        needs = installed.metadata(name)["Requires-Python"]
        if needs and OLDEST_PYTHON not in SpecifierSet(needs):
            sys.exit(
                f"{name} {found[name]} needs Python {needs}: install one for {OLDEST_PYTHON}, then lock again"
            )
        for line in installed.requires(name) or ():
            child = Requirement(line)
            extras = requirement.extras or {""}
            if child.marker is None or any(child.marker.evaluate({"extra": extra}) for extra in extras):
                queue.append(child)
    return found


def write(name: str, heading: str, versions: dict[str, str]) -> None:
    """One ``name==version`` a line, sorted."""
    lines = [f"{package}=={version}" for package, version in sorted(versions.items())]
    (ROOT / "requirements" / name).write_text("\n".join([heading, *lines]) + "\n", encoding="utf-8")


def main() -> None:
    """Three files: what the agent needs, what developing needs on top, and what builds."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    run = closure(setup["options"]["install_requires"].split("\n")[1:])
    extras = setup["options.extras_require"]
    dev = closure(line for extra in extras for line in extras[extra].split("\n") if line)
    note = "# Written by .ci/lock.py; do not edit."
    write("run.txt", note, run)
    write("dev.txt", f"{note}\n-r run.txt", {name: dev[name] for name in dev if name not in run})
    write("build.txt", note, closure(BUILD))


if __name__ == "__main__":
    main()
