"""What docs/everyday.md has people type prints what it says, and other pages name commands that there are."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest

from gpulease.transport import Transport
from nodeagent.wiring.state import stem

DOCS = Path(__file__).resolve().parents[2] / "docs"
CODE = re.compile(r"`([^`]+)`")
MACHINE, DEVICE = "mi300x-spx", "0000:c7:00.0"
PROGRAMS = {"solver": "echo solved", "train.py": "print('trained')", "docker": "exit 0"}


@dataclass(frozen=True, slots=True)
class Line:
    """A row of one of the page's tables."""

    typed: str
    shown: tuple[str, ...]  # fragments of what it prints


def lines() -> tuple[Line, ...]:
    text = (DOCS / "everyday.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `((?:gpulease|nodeagent) [^`]+)` \| (.*) \|$", text, re.M)
    return tuple(Line(typed, tuple(CODE.findall(said))) for typed, said in rows)


LINES = lines()


@dataclass
class Desk:
    """An agent on a simulated node, and a directory with the programs that the page's commands name."""

    directory: Path
    lease: str = "17"
    printed: dict[str, str] = field(default_factory=dict)

    @property
    def socket(self) -> str:
        return str(self.directory / "s")

    @property
    def state(self) -> Path:
        return self.directory / "state"

    def as_here(self, text: str) -> str:
        """*text* with this node's lease and device in place of the page's."""
        return re.sub(r"\b17\b", self.lease, text.replace("0000:c1:00.0", DEVICE))

    def words(self, line: str) -> list[str]:
        """The command for this desk's agent; an engine's is only worked out, as there is none."""
        program, verb, *rest = shlex.split(self.as_here(line))
        module = {"gpulease": "gpulease", "nodeagent": "nodeagent.cli.main"}[program]
        if verb == "docker":
            rest[1:1] = ["--dry-run"]
        elif verb in ("bypass", "report"):
            rest += ["--state-dir", str(self.state)]
        return [sys.executable, "-m", module, verb, *rest]

    def type(self, line: str) -> None:
        """Run it to its end, and keep what it prints."""
        path = f"{self.directory}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            self.words(line),
            cwd=self.directory,
            env={**os.environ, "GPULEASE_SOCKET": self.socket, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        self.printed[line] = done.stdout + done.stderr
        granted = re.match(r"lease (\d+): active", done.stdout)
        if granted:
            self.lease = granted[1]


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    """Every command of the page was typed, in the page's order."""
    if os.geteuid() != 0:
        pytest.skip("only root drains and bypasses")
    made = Desk(Path(tempfile.mkdtemp(prefix="everyday-")))
    for name, text in PROGRAMS.items():
        (made.directory / name).write_text(text if name.endswith(".py") else f"#!/bin/sh\n{text}\n")
        (made.directory / name).chmod(0o755)
    words = ["serve", "--simulate", MACHINE, "--socket", made.socket, "--state-dir", str(made.state)]
    with (made.directory / "log").open("wb") as log:
        agent = subprocess.Popen([sys.executable, "-m", "nodeagent.cli.main", *words], stderr=log)
    try:
        await_ready(made)
        for line in LINES:
            made.type(line.typed)
        yield made
    finally:
        (Path("/run/nodeagent/bypass") / stem(made.state)).unlink(missing_ok=True)
        agent.terminate()
        agent.wait(30)
        shutil.rmtree(made.directory, ignore_errors=True)


def await_ready(desk: Desk) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            if Transport(desk.socket, timeout=5).call("GET", "/readyz", None).status == 200:
                return
        except Exception:  # not yet
            assert time.monotonic() < deadline, (desk.directory / "log").read_text()
        time.sleep(0.1)


@pytest.mark.root
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.typed)
def test_each_prints_what_the_page_shows(desk: Desk, line: Line) -> None:
    """Each fragment that is shown is in the output; of the programs that are run, what they print."""
    printed = desk.printed[line.typed]
    for shown in line.shown:
        if shown.startswith("--"):  # an option that the text speaks of
            continue
        pattern = re.escape(desk.as_here(shown.strip())).replace("…", ".*")
        assert re.search(pattern, printed), f"{shown!r} is not in:\n{printed}"
    for name, said in (("train.py", "trained"), ("./solver", "solved")):
        if f"-- python {name}" in line.typed or f"-- {name}" in line.typed:
            assert said in printed


def test_there_are_ten_of_each() -> None:
    """Ten commands of a user's and ten of an administrator's."""
    programs = [line.typed.split()[0] for line in LINES]
    assert programs == ["gpulease"] * 10 + ["nodeagent"] * 10


# -- commands that other pages name ------------------------------------------------------------------------


def typed(page: str) -> Iterator[str]:
    """Each command in the page's code: whole spans, and lines of fenced blocks."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S):
        yield from re.findall(r"^(?:[$#] )?((?:gpulease|nodeagent) [a-z].*?)(?: +#.*)?$", block, re.M)
    spans = CODE.findall(re.sub(r"^```\w*\n.*?^```$", "", text, flags=re.M | re.S))
    yield from (span for span in spans if re.match(r"(gpulease|nodeagent) [a-z]", span))


PAGES = ("concepts.md", "coming-from.md", "nodes.md", "everyday.md")
NAMED = sorted({(page, line) for page in PAGES for line in typed(page)})


@pytest.mark.parametrize(("page", "line"), NAMED, ids=lambda value: value)
def test_every_command_that_is_named_is_one(page: str, line: str) -> None:
    """It parses with its arguments and options; a name alone (`gpulease show`) is a command's."""
    program, *words = shlex.split(re.sub(r"\bID\b", "17", line).replace("FILE", __file__))
    if program == "gpulease":
        parse_client(words)
    else:
        parse_agent(words)


def parse_client(words: list[str]) -> None:
    """With its own parser; what stands behind an engine's name is read as the engine's client would."""
    cli = importlib.import_module("gpulease.cli")
    head, tail = cli._split(words)
    if len(words) > 1:
        cli.build_parser(with_engines=False).parse_args(head)
    else:
        assert head[0] in cli.build_parser().format_help()
    if head[-1] in cli.ENGINES and tail:
        wanted = argparse.ArgumentParser(allow_abbrev=False)
        importlib.import_module("gpulease.containers.wanted").add_options(wanted)
        known = {option for action in wanted._actions for option in action.option_strings}
        asked = {word for word in tail if word.startswith("--")} - {"--rm"}
        assert asked <= known, f"no options of ours: {asked - known}"


def parse_agent(words: list[str]) -> None:
    command: Any = importlib.import_module("nodeagent.cli.main").cli
    while words and isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    if words:
        command.make_context(command.name, list(words))
