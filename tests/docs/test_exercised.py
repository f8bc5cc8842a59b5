"""Each name that others build on is exercised (tests/exercised): what can be told without running all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.exercised.__main__ import unexercised
from tests.exercised.names import CATEGORIES, ROOT, unnamed

HERE = Path(__file__).resolve()
IMPORTS = """
from nodeagent.domain.device import Inventory
from nodeagent.domain.placement import place
from nodeagent.domain.refusals import Code, Refusal
from nodeagent.domain.request import Request, SliceRequest
"""


@pytest.fixture(scope="module")
def tests() -> str:
    """The text of all tests but these here."""
    paths = (path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path.parent != HERE.parent)
    return "".join(path.read_text(encoding="utf-8") for path in paths)


@pytest.mark.parametrize("category", sorted(CATEGORIES))
def test_every_name_is_named_by_a_test(category: str, tests: str) -> None:
    """Some test has it in its text. Whether it comes about there is judged at the end of `make test`."""
    missing = ", ".join(unnamed(category, CATEGORIES[category](), tests))
    assert not missing, f"no test names {missing}: write one in which each comes about, and assert it there"


def test_what_no_test_exercised_is_told() -> None:
    """A name that nothing did, and one that came about where nobody names it; what is named there is well."""
    here = HERE.relative_to(ROOT)
    notes = [f"{category}\t{name}\t{here}" for category, names in CATEGORIES.items() for name in names()]
    told = list(unexercised(note for note in notes if "granted" not in note))
    assert "event granted: the agent does not write it in any test: write one in which that happens" in told
    assert f"event drained: comes about in {here}, which do not name it: assert it in one" in told
    assert not [one for one in told if one.startswith("event released:")]  # this line names it: 'released'


@pytest.mark.parametrize(
    ("text", "noted"),
    [
        (
            "place(Inventory(None, (), ()), (), Request(slices=(SliceRequest(),)))",
            "refusal\tNodeHasNoDevice\tx.py\n",
        ),
        ("Refusal(Code.NO_DEVICE, 'made up', '')", ""),
    ],
    ids=["done", "made-up"],
)
def test_what_a_test_makes_up_is_not_noted(text: str, noted: str, tmp_path: Path) -> None:
    """Only what the product itself does counts, in any process that the tests start."""
    notes = tmp_path / "notes"
    notes.touch()
    setting = {"NODEAGENT_EXERCISED": str(notes), "PYTEST_CURRENT_TEST": "x.py::test_x (call)"}
    site = ROOT / "tests" / "exercised" / "site"
    environment = {**os.environ, **setting, "PYTHONPATH": str(site)}
    subprocess.run([sys.executable, "-c", IMPORTS + text], env=environment, check=True)
    assert notes.read_text() == noted
