"""`nodeagent partition`, over an agent that is a dictionary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from click.testing import CliRunner, Result

from gpulease.errors import Refused
from nodeagent import config as settings
from nodeagent.cli import partitioning
from nodeagent.cli.main import cli
from nodeagent.domain.errors import InvalidField


class Agent:
    """Two cards; *late* looks pass before one comes back, *busy* is in use."""

    def __init__(self) -> None:
        self.cards = {pci: self._card(pci) for pci in ("0000:05:00.0", "0000:27:00.0")}
        self.late = 0
        self.busy: str | None = None
        self.put: list[tuple[str, str]] = []

    def ask(
        self, socket: Path | None, method: str, target: str, body: Mapping[str, Any] | None = None, **_: Any
    ) -> Any:
        if target.startswith("/v1/devices?device="):
            keys = [pci for pci in self.cards if pci.replace(":", "%3A") in target or "all" in target]
            return {"devices": [{"pci": pci} for pci in keys for _ in range(2)]}
        if method == "GET":
            self.late -= 1
            if self.late <= 0:
                for card in self.cards.values():
                    card.update(compute_partition=card["switching"] or card["compute_partition"])
                    card["switching"] = None
            return {"cards": [dict(card) for card in self.cards.values()], "next": None}
        pci, mode = unquote(target).split("/")[3], str((body or {})["mode"]).upper()
        if pci == self.busy:
            raise Refused({"detail": f"the card {pci} is in use: lease 7"})
        self.put.append((pci, mode))
        card = self.cards[pci]
        card.update({"switching": mode} if self.late else {"compute_partition": mode})
        return dict(card)

    @staticmethod
    def _card(pci: str) -> dict[str, Any]:
        return {
            "pci": pci,
            "product": "AMD Instinct MI300X",
            "gfx": "gfx942",
            "compute_partition": "SPX",
            "compute_partitions": ["SPX", "CPX"],
            "memory_partition": "NPS1",
            "memory_partitions": ["NPS1", "NPS4"],
            "memory_alloc_mode": None,
            "switching": None,
            "devices": [f"{pci}/0"],
        }


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    made = Agent()
    monkeypatch.setattr(partitioning, "ask", made.ask)
    monkeypatch.setattr(partitioning.time, "sleep", lambda seconds: None)
    return made


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "nodeagent.toml"
    path.write_text('[partitions.modes]\n"0000:27:00.0" = "spx"\n"MI300X" = "cpx"\n')
    return path


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["partition", *map(str, words)])


def test_the_cards_are_a_table(agent: Agent) -> None:
    """Without a verb they are shown, with what they can be and what they are on the way to."""
    agent.cards["0000:27:00.0"]["switching"], agent.late = "CPX", 9
    shown = run().output
    assert shown == run("show").output
    rows = [line.split() for line in shown.splitlines()]
    assert rows[1][4:] == ["SPX", "SPX", "CPX", "NPS1", "NPS1", "NPS4", "-", "1"]
    assert rows[2][4:7] == ["SPX", ">", "CPX"]
    assert '"switching": "CPX"' in run("show", "--json").output


def test_a_card_is_set_and_waited_for(agent: Agent) -> None:
    """By any name of a device of one card; done when it is back."""
    agent.late = 3
    done = run("set", "0000:05:00.0", "CPX", "--yes")
    assert (done.exit_code, done.output) == (0, "0000:05:00.0: CPX, 1 devices\n")
    assert agent.put == [("0000:05:00.0", "CPX")]


@pytest.mark.parametrize(
    "words", [("0000:05:00.0", "cpx"), ("all", "cpx", "--yes"), ("none", "cpx", "--yes")]
)
def test_nothing_is_set_by_half_a_word(agent: Agent, words: tuple[str, ...]) -> None:
    """A script must say --yes, and name one card."""
    assert run("set", *words).exit_code != 0
    assert agent.put == []


def test_a_mode_of_memory_is_none_to_set(agent: Agent) -> None:
    """Memory modes need the driver loaded anew: they are shown and never set."""
    done = run("set", "0000:05:00.0", "nps4", "--yes")
    assert (done.exit_code, agent.put) == (2, [])


def test_assert_tells_by_its_exit_code(agent: Agent, site: Path) -> None:
    """0 as wanted, 1 otherwise, 2 where a card can never be so."""
    first = run("assert", "--config", site)
    assert (first.exit_code, first.output.splitlines()) == (
        1,
        ["0000:05:00.0: DIFFERS: is SPX, wanted CPX", "0000:27:00.0: OK: SPX"],
    )
    agent.cards["0000:05:00.0"]["compute_partition"] = "CPX"
    assert run("assert", "--config", site).exit_code == 0
    site.write_text('[partitions.modes]\n"gfx942" = "tpx"\n')
    third = run("assert", "--config", site)
    assert (third.exit_code, "WRONG: 'tpx' is no mode that the card" in third.output) == (2, True)


def test_apply_does_what_can_be_done(agent: Agent, site: Path) -> None:
    """Cards that differ are set, the others left; who is in use is told, and the exit code is 1."""
    assert run("apply", "--config", site).exit_code == 2
    assert agent.put == []
    assert run("apply", "--config", site, "--yes").output == "0000:05:00.0: CPX, 1 devices\n"
    again = run("apply", "--config", site)
    assert (again.exit_code, again.output) == (0, "every card is as the settings want it\n")
    agent.cards["0000:05:00.0"]["compute_partition"], agent.busy = "SPX", "0000:05:00.0"
    busy = run("apply", "--config", site, "--yes")
    assert (busy.exit_code, "not CPX: the card 0000:05:00.0 is in use: lease 7" in busy.output) == (1, True)


@pytest.mark.parametrize("text", ['[partitions.modes]\nx = "nps4"\n', "[partitions]\nmodes = 3\n"])
def test_settings_that_are_wrong_are_not_applied(agent: Agent, site: Path, text: str) -> None:
    """A typing error must not divide a card, nor pass for a wish."""
    site.write_text(text)
    for verb in (("apply", "--yes"), ("assert",)):
        done = run(*verb, "--config", site)
        assert isinstance(done.exception, InvalidField)
        assert "partitions.modes" in str(done.exception)
    assert agent.put == []


def test_export_gives_the_settings_for_what_is(agent: Agent, tmp_path: Path) -> None:
    """What it prints is read back as the modes of now, and asserts."""
    path = tmp_path / "exported.toml"
    path.write_text(run("export").output)
    config, complaints = settings.check(path)
    assert (config.partitions.modes, complaints) == (dict.fromkeys(agent.cards, "spx"), [])
    assert run("assert", "--config", path).exit_code == 0
    shown = tmp_path / "shown.toml"
    shown.write_text(settings.render(config))
    assert settings.check(shown)[0].partitions == config.partitions
