"""docs/enforcement.md says what the tests show, no more and no less."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


ways = load(HERE / "ways_out.py")
mutants = load(HERE.parent / "mutants" / "run.py")


def test_the_table_of_ways_out_is_what_the_tests_declare() -> None:
    """Each row is a test's own mark; `make enforcement` writes the table anew."""
    assert ways.shown(ways.PAGE.read_text(encoding="utf-8")) == ways.table(ways.ways_out())


def test_the_table_of_mutants_is_what_the_run_works_through() -> None:
    """`make mutants` writes it after a run in which every one was noticed."""
    page = mutants.PAGE.read_text(encoding="utf-8")
    shown = page.partition(mutants.BEGIN)[2].partition(mutants.END)[0]
    assert shown == mutants.table(mutants.mutants())


@pytest.mark.parametrize("row", mutants.mutants(), ids=lambda row: row.name)
def test_a_mutants_text_is_in_the_code(row: mutants.Mutant) -> None:
    """A row that has fallen behind the code would leave out nothing."""
    text = (mutants.ROOT / row.file).read_text(encoding="utf-8")
    assert text.count(row.old) == 1
    assert all((mutants.ROOT / test.partition("::")[0]).exists() for test in row.tests)
