"""What is wrong with the words of a command is one line, which names the word, and exit 2."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from nodeagent.cli.doctor import lines
from nodeagent.cli.main import cli
from nodeagent.domain.doctor import Finding, Level


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--bogus"], "--bogus: there is no such option"),
        (["drain", "--al"], "--al: there is no such option; did you mean --all, --help?"),
        (["nope"], "Usage: No such command 'nope'."),
        (["clear"], "DEVICE|LEASE: has to be given"),
        (["bypass", "on"], "--until: has to be given"),
        (["clear", "--socket"], "--socket: Option '--socket' requires an argument."),
        (["clear", "a", "b"], "Usage: Got unexpected extra argument (b)"),
        (
            ["drain", "--all", "--until", "soon"],
            "--until: 'soon' is not a duration such as 90s, 15m, 2h, 1d or 1h30m",
        ),
        (["journal", "x"], "LEASE: 'x' is not a lease's number; `gpulease status` lists them"),
        (["reload", "--config", "/none"], "--config: File '/none' does not exist."),
        (["health", "--nagios", "--json"], "Usage: --nagios and --json are two ways to say it: take one"),
    ],
)
def test_a_wrong_word_is_a_fault_like_any(words: list[str], said: str) -> None:
    """No usage and no box: `nodeagent: FIELD: reason`."""
    done = CliRunner().invoke(cli, words)
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"nodeagent: {said}\n")


@pytest.mark.parametrize("words", [["bypass"], ["config"], []])
def test_a_group_alone_shows_what_it_has(words: list[str]) -> None:
    """Who types half a command is told the other half."""
    done = CliRunner().invoke(cli, words)
    assert "Commands:" in done.output
    assert "nodeagent: " not in done.output


def finding(name: str, level: Level, text: str) -> Finding:
    return Finding(name, "node", level, text, "", "o/r#1")


def test_what_one_reason_hides_is_one_line() -> None:
    """Checks that are unseen for reasons that several share are counted, where the first would be."""
    told = lines(
        [
            finding("driver", Level.FAIL, "is not loaded"),
            finding("a", Level.UNSEEN, "there is no card"),
            finding("b", Level.OK, "it does"),
            finding("c", Level.UNSEEN, "no agent answers"),
            finding("d", Level.UNSEEN, "there is no card"),
            finding("e", Level.UNSEEN, "no agent answers"),
            finding("f", Level.UNSEEN, "only root may"),
        ]
    )
    assert list(told) == [
        "FAIL   driver: is not loaded",
        "UNSEEN 4 checks: there is no card (2); no agent answers (2) [--json names them]",
        "OK     b: it does",
        "UNSEEN f: only root may",
    ]
