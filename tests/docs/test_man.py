"""The manual's pages are made from the documentation, and name what there is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_manual_has_every_command(tmp_path: Path, page: Callable[[str], Any]) -> None:
    """gpulease(1) and nodeagent(8) each have the sections of docs/cli.md that are theirs, and no others."""
    words = ["-q", "-W", "-t", "man", "-b", "man", str(ROOT / "docs"), str(tmp_path)]
    subprocess.run([sys.executable, "-m", "sphinx", *words], check=True)
    pages = {"gpulease": "gpulease.1", "nodeagent": "nodeagent.8"}
    for program, file in pages.items():
        text = (tmp_path / file).read_text(encoding="utf-8").replace("\\-", "-").upper()
        other = next(name for name in pages if name != program)
        assert all(f".SH {heading}".upper() in text for heading in page("cli.md").headings(f"{program} "))
        assert f".SH {other} ".upper() not in text
