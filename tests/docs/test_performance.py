"""The pages of measured figures show the committed ones, each of which is measured again by its name."""

from __future__ import annotations

import pytest

from tests.bench import report, run


@pytest.mark.parametrize("page", report.tables(report.read()))
def test_the_tables_are_those_of_the_committed_figures(page: str) -> None:
    """`make bench` writes figures.json, and the tables in both pages."""
    text = (report.DOCS / page).read_text(encoding="utf-8")
    assert report.shown(text) == report.tables(report.read())[page]


def test_the_committed_figures_are_those_that_there_are() -> None:
    """Each figure of a subject that was measured is in figures.json, and none that is no more."""
    measured = {name for name, one in report.read()["subjects"].items() if "left_out" not in one}
    assert set(report.read()["subjects"]) == set(run.SUBJECTS)
    there = {one.name for name in measured for one in run.SUBJECTS[name].figures}
    assert set(report.figures(report.read())) == there


def test_names_are_of_one_figure_or_subject() -> None:
    """What `run.py NAME` measures alone is one thing, or a subject that is named after its only figure."""
    names = [one.name for subject in run.SUBJECTS.values() for one in subject.figures]
    assert len(names) == len(set(names))
    for name, subject in run.SUBJECTS.items():
        assert name not in names or name in {one.name for one in subject.figures}
