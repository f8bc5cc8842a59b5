"""docs/placement.md shows what tests/bench/placement.json says."""

from __future__ import annotations

import pytest

from tests.bench.placing.report import PAGE, read, shown, tables


@pytest.mark.parametrize("name", sorted(tables(read())))
def test_a_table_of_the_page_is_the_reports(name: str) -> None:
    """Each table of the page is made of the committed report: `make bench-placement` writes both."""
    assert shown(PAGE.read_text(encoding="utf-8"), name) == tables(read())[name]
