"""What becomes of measures: ratios of one moment, targets, tables, and what is called worse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import report, run, scale
from tests.bench.figures import Figure, Result, Spread, Subject, Taken, Target, Turn, document

GRANT = Figure("grant", "a grant", "ms", "the floor", Target("ratio", 2), guarded=True)


def result(*turns: Taken, figure: Figure = GRANT) -> Result:
    return Result.of(figure, turns)


def test_a_ratio_is_of_one_turn() -> None:
    """Noise that doubles both sides of a turn changes no ratio, whatever it does to the medians."""
    quiet, noisy = Taken([3.0, 3.0], [1.0, 1.0]), Taken([60.0], [20.0])
    assert result(quiet, noisy, noisy).ratio == 3
    assert result(quiet, Taken([2.0], [1.0]), Taken([9.0], [3.0])).ratio == 3


def test_a_spread_is_of_all_measures() -> None:
    """Median, tenth and nine tenths are those of every turn's measures together."""
    assert result(Taken(range(50)), Taken(range(50, 101))).value == Spread(50, 10, 90, 101)


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (None, None),
        (Target("value", 6), True),
        (Target("value", 5.9), False),
        (Target("ratio", 3), True),
        (Target("ratio", 2.9), False),
        (Target("above", 4), True),
        (Target("above", 3.9), False),
    ],
)
def test_a_target_is_met_by_value_ratio_or_difference(target: Target | None, met: bool | None) -> None:
    """Each kind of target looks at its own number."""
    figure = Figure("grant", "a grant", "ms", "the floor", target)
    assert result(Taken([6.0], [2.0]), figure=figure).met is met


def test_what_has_no_peer_has_no_ratio() -> None:
    """Without a floor there is neither ratio nor difference, and a target for one is not said to be met."""
    alone = result(Taken([6.0]))
    assert (alone.ratio, alone.above, alone.beside, alone.met) == (None, None, None, None)
    assert result(Taken([6.0], [0.0])).ratio is None


@pytest.mark.parametrize(
    ("now", "before", "said"),
    [
        (2.5, 2.0, False),
        (2.51, 2.0, True),
        (1.0, 2.0, False),
        (9.0, None, False),
        (None, 2.0, False),
    ],
)
def test_worse_is_more_than_a_quarter_above(now: float | None, before: float | None, said: bool) -> None:
    """Only a ratio above 1.25 times the committed one is worse; what is new or has none is not."""
    row = {"name": "grant", "beside": "the floor", "ratio": now}
    assert bool(report.worse(row, {"ratio": before})) is said
    assert report.worse(row, None) is None


def played(ratios: Iterator[float]) -> Subject:
    """A subject whose turns have these ratios."""

    def turns() -> Iterator[Turn]:
        for ratio in ratios:
            yield {"grant": Taken([ratio], [1.0])}

    return Subject("Played", (GRANT,), turns, count=3, warm=0)


@pytest.mark.parametrize(
    ("first", "again", "code"), [(2.0, 9.0, 0), (9.0, 2.0, 0), (9.0, 9.0, 1)], ids=["good", "noise", "worse"]
)
def test_the_guard_believes_a_figure_that_is_worse_twice(
    first: float, again: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One bad run is measured again; two are a failure that names the figure and both ratios."""
    ratios = iter([first] * run.CHECK_TURNS + [again] * 2 * run.CHECK_TURNS)
    committed = {"machine": {}, "subjects": {"played": {"figures": [{"name": "grant", "ratio": 2.0}]}}}
    monkeypatch.setattr(run, "SUBJECTS", {"played": played(ratios)})
    monkeypatch.setattr(report, "read", lambda: committed)
    assert run.check([]) == code
    assert ("grant: 9 × the floor, which was 2 ×: 350% worse" in capsys.readouterr().out) is bool(code)


def test_a_partial_run_keeps_the_other_subjects(tmp_path: Path) -> None:
    """Subjects that were not measured again stay as they are; the page has the table of what is written."""
    page, path = tmp_path / "performance.md", tmp_path / "figures.json"
    for each in (page, tmp_path / "scale.md"):
        each.write_text(f"before\n{report.BEGIN}old\n{report.END}after\n", encoding="utf-8")
    made = document(result(Taken([6.0], [2.0])))
    told = {"machine": {}, "subjects": {"gone": {"title": "Gone", "left_out": "it is", "figures": []}}}
    report.put(told, "calls", "Calls", [made])
    report.put(told, "again", "Again", [{**made, "name": "release"}])
    report.put(told, "calls", "Calls", [{**made, "ratio": 4.0}])
    report.order(told, ["again", "calls"])
    report.write(told, path, tmp_path)
    figures = report.figures(json.loads(path.read_text(encoding="utf-8")))
    assert {name: one["ratio"] for name, one in figures.items()} == {"grant": 4.0, "release": 3.0}
    text = page.read_text(encoding="utf-8")
    assert report.shown(text) == report.table(report.read(path))
    assert (text[:7], text[-6:]) == ("before\n", "after\n")


def test_a_row_tells_what_was_measured_beside_what() -> None:
    """Name, meaning, median and spread, peer and its median, ratio, target, and whether it is met."""
    figures = [
        document(result(Taken([6.0, 7.0], [2.0]))),
        {**document(result(Taken([1234.5]))), "name": "list"},
    ]
    told = {
        "machine": {},
        "subjects": {"calls": {"title": "Calls", "at": "now", "load": 0, "figures": figures}},
    }
    assert "Of 1 targets 0 are met.\nNot met: `grant`.\n" in report.table(told)
    rows = [line for line in report.table(told).splitlines() if line.startswith("| `")]
    assert rows[0] == (
        "| `grant` | a grant | 6.5 ms (6 to 7, 2) | the floor | 2 ms | 3.25 × | ≤ 2 × | **not met** |"
    )
    assert rows[1].startswith("| `list` | a grant | 1,230 ms |")


def test_a_fleets_cost_is_derived_from_the_figures_of_one_node() -> None:
    """Bytes and samples a second, memory and processors of 10,000 nodes are those of one, times the nodes."""
    names = ("metrics", "idle-processor", "lived-processor", "memory", "lived-memory", "start", "start-empty")
    scrapes = [f"scrape-{devices}{kind}" for devices in (8, 63) for kind in ("", "-series")]
    found = {name: {"measured": {"median": 6.0}, "its": {"median": 12.0}} for name in (*names, *scrapes)}
    rows = scale.table(found).splitlines()
    assert "| 0.06 million, 1,000 samples a second |" in rows[2]
    assert "| 6.0 KiB | `scrape-8` | 1.0 MiB a second |" in rows[3]
    assert any("memory (PSS): no lease | 6 MiB | `memory` | 59 GiB |" in row for row in rows)
    assert scale.table({}) == "Not measured yet.\n"
