"""Write requirements/hashes.txt: the files that packages carry of each locked distribution, by their sha256.

Run it in .venv after .ci/lock.py, with a package index. It asks pip what it would take for each Python that
the packages are for.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")  # of Debian 12, Ubuntu 24.04, Debian 13
GLIBC = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def for_python(version: str) -> tuple[str, ...]:
    """pip's options for wheels that run on *version*, whichever runs pip."""
    abis = (f"cp{version.replace('.', '')}", "abi3", "none")
    options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={version}"]
    return (*options, *(f"--abi={abi}" for abi in abis), *(f"--platform={each}" for each in GLIBC))


def chosen(version: str) -> Iterator[tuple[str, str]]:
    """``name==version`` and the sha256 of the file that pip takes for that Python."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        words = ["install", "--quiet", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
        options = [
            f"--target={scratch}/none",
            f"--report={report}",
            f"--requirement={ROOT}/requirements/run.txt",
        ]
        subprocess.run([sys.executable, "-m", "pip", *words, *options, *for_python(version)], check=True)
        for each in json.loads(report.read_text())["install"]:
            name = each["metadata"]["name"].lower().replace("_", "-")
            hashes = each["download_info"]["archive_info"]["hashes"]
            yield f"{name}=={each['metadata']['version']}", hashes["sha256"]


def main() -> None:
    """Several hashes for what is compiled, one for the rest."""
    found: dict[str, set[str]] = defaultdict(set)
    for version in PYTHONS:
        for pinned, digest in chosen(version):
            found[pinned].add(digest)
    lines = ["# Written by .ci/hashes.py; do not edit."]
    for pinned, digests in sorted(found.items()):
        lines.append(" \\\n    ".join([pinned, *(f"--hash=sha256:{one}" for one in sorted(digests))]))
    (ROOT / "requirements/hashes.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
