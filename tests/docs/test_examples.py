"""What the pages have readers type, write and run is right; what can be run here is run."""

from __future__ import annotations

import argparse
import doctest
import grp
import importlib
import json
import os
import pwd
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from .desk import Desk, at_a_desk
from .test_everyday import LINES as EVERY_DAY

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (*(ROOT / "docs").glob("*.md"),)}
PAGES |= {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md")}
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.M | re.S)
OURS = re.compile(r"^(?:[$#] |sudo )?((?:gpulease|nodeagent) [a-z].*?)(?: +#.*)?$", re.M)
SHELL = ("sh", "console", "")
PLACEHOLDERS = {  # how a page writes what the reader puts there
    r"\b(ID|LEASE)\b": "17",
    r"\bMODE\b": "cpx",
    r"\bFILE\b": __file__,
    r"\./copied-tree": "/",
    r"--textfile$": "--textfile x.prom",
    r" \[options\]": "",
    r" >.*": "",
}
# Commands that are not run here, though they stand alone in a block: why.
NOT_RUN = {
    "nodeagent serve": "it is what the others are typed at",
    "nodeagent reload": "it signals the process that has the state directory; tests/node/test_reload.py",
    "nodeagent simulate": "it writes down this machine, or a copied tree that is not there",
    "nodeagent audit": "it needs a GPU, or a tree of the kernel's own; tests/cli/test_audit.py",
    "nodeagent health --drain-node": "it would tell Slurm",
    "gpulease completion": "it writes where the reader's shell looks; tests/client/test_completion.py",
    "gpulease numbering --device slurm:0": "the node has no gres.conf",
    "gpulease run --partition": "the node's cards are not divided; tests/service/test_partitioning.py",
    "gpulease run --cu 25% --vram 4G -- ./my_hip_program": "tests/rocm runs HIP programs",
}


def blocks(*kinds: str) -> list[tuple[str, str]]:
    """(page, text) of each fenced block of these kinds."""
    return [
        (page, text)
        for page, whole in sorted(PAGES.items())
        for _, kind, text in BLOCK.findall(whole)
        if kind in kinds
    ]


def in_blocks() -> Iterator[tuple[str, str]]:
    """(page, command) of ours, alone on its line."""
    for page, text in blocks(*SHELL):
        for line in OURS.findall(text.replace("\\\n", "")):
            yield page, re.split(r" [|>]", line)[0].strip()


def in_text() -> Iterator[tuple[str, str]]:
    """(page, command) of ours in a code span, or substituted in another's command."""
    for page, whole in PAGES.items():
        for span in re.findall(r"`([^`\n]+)`", BLOCK.sub("", whole)):
            if re.match(r"(gpulease|nodeagent) [a-z]", span):
                yield page, span
    for page, text in blocks(*SHELL):
        for inner in re.findall(r"\$\(((?:gpulease|nodeagent) [^)]+)\)", text):
            yield page, inner


NAMED = sorted({*in_blocks(), *in_text()})
RUN = sorted(
    {line for _, line in in_blocks() if not line.startswith(tuple(NOT_RUN))}
    - {one.typed for one in EVERY_DAY}  # typed by tests of their own
)


@pytest.mark.parametrize(("page", "line"), NAMED, ids=lambda value: value)
def test_every_command_that_is_named_is_one(page: str, line: str) -> None:
    """It parses with its arguments and options; a name alone (`gpulease show`) is a command's."""
    for spelled, meant in PLACEHOLDERS.items():
        line = re.sub(spelled, meant, line)
    program, *words = shlex.split(line)
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


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    """One who has a lease, which the pages call 17, and has typed every command, in one order: some drain."""
    if os.geteuid() != 0:
        pytest.skip("only root drains and bypasses")
    with at_a_desk() as made:
        assert made.type("gpulease grant --vram 1G --ttl 1h") == 0
        for line in RUN:
            made.type(line)
        yield made


@pytest.mark.root
@pytest.mark.parametrize("line", RUN)
def test_what_can_be_run_succeeds(desk: Desk, line: str) -> None:
    """Each command that stands in a block, typed at a simulated node; a doctor's word is no failure."""
    may_fail = line.startswith(("nodeagent doctor", "nodeagent health"))
    assert desk.codes[line] == 0 or may_fail, desk.printed[line]


@pytest.mark.root
@pytest.mark.parametrize(
    "line", sorted(set(re.findall(r"curl --unix-socket .*?(?=`|$)", "\n".join(PAGES.values()), re.M)))
)
def test_curl_is_answered(desk: Desk, line: str) -> None:
    """What needs no client of ours."""
    done = desk.run(shlex.split(line.replace("/run/nodeagent/api.sock", desk.socket)))
    assert done.returncode == 0 and json.loads(done.stdout), done.stderr


@pytest.mark.root
@pytest.mark.parametrize("text", [text for _, text in blocks("python")])
def test_python_runs_as_it_stands(desk: Desk, text: str) -> None:
    """Each program, with the agent that the environment names."""
    done = desk.run([sys.executable, "-c", text])
    assert (done.returncode, done.stderr) == (0, "") and done.stdout


@pytest.mark.parametrize(("page", "text"), blocks("toml"), ids=lambda value: value[:20])
def test_settings_are_settings(page: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each TOML block has known keys and values, on a node that has the users and groups that it names."""
    monkeypatch.setattr(pwd, "getpwnam", lambda name: pwd.getpwuid(0))
    monkeypatch.setattr(grp, "getgrnam", lambda name: grp.getgrgid(0))
    importlib.import_module("nodeagent.config").Config.model_validate(tomllib.loads(text))


@pytest.mark.parametrize(("page", "text"), blocks("json"), ids=lambda value: value[:20])
def test_json_is_json(page: str, text: str) -> None:
    """Each block of it."""
    json.loads(text)


def test_what_make_is_told_to_make_exists() -> None:
    """Each target in a block or a code span."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    told = {
        target
        for whole in PAGES.values()
        for target in re.findall(r"(?:^|`)(?:[$#] )?make ([a-z-]+)", whole, re.M)
    }
    assert told and told <= targets


def test_the_tests_that_are_told_to_be_run_exist() -> None:
    """Each path of a pytest command, and the function that it selects."""
    commands = re.findall(r"\.venv/bin/pytest (\S+)(?: -k (\w+)\b)?", "\n".join(PAGES.values()))
    assert len(commands) >= 4
    for path, word in commands:
        assert (ROOT / path).exists(), path
        if path.endswith(".py") and word:
            assert re.search(rf"^def test_\w*{word}", (ROOT / path).read_text(encoding="utf-8"), re.M), word


def test_sessions_in_docstrings_are_true() -> None:
    """What stands behind >>> gives what stands below it, wherever somebody has written one."""
    for top in ("nodeagent", "client/gpulease/gpulease"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if ">>> " in path.read_text(encoding="utf-8"):
                name = str(path.relative_to(ROOT).with_suffix("")).removeprefix("client/gpulease/")
                module = importlib.import_module(name.replace("/", "."))
                assert doctest.testmod(module).failed == 0, name
