"""Everything that others build on is in the documentation, and nothing else is.

What exists is read from the code itself: the parsers, the routes, the settings, the enumerations.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import click
import pytest

from tests.exercised import names

ROOT = Path(__file__).resolve().parents[2]
# The tests' page and comparison, as tests/docs/conftest.py has them.
Read = Callable[[str], Any]
Same = Callable[[str, Any, Any], None]
METRICS = ("Of the node", "Of each device", "Of each card", "Of each lease")  # headings of docs/metrics.md
ROUTE = re.compile(r"(GET|POST|DELETE|PUT|PATCH) /")


def click_commands(command: click.Command, name: str) -> Iterator[tuple[str, set[str]]]:
    """Every command that does something, spelled in full, with its long options."""
    if isinstance(command, click.Group):
        for child, inner in command.commands.items():
            yield from click_commands(inner, f"{name} {child}")
        return
    yield (
        name,
        {spelling for parameter in command.params for spelling in parameter.opts if spelling[:2] == "--"},
    )


def argparse_commands(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, set[str]]]:
    """The same of an argparse parser; hidden options do not count."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for group in groups:
        for child, inner in group.choices.items():
            yield from argparse_commands(inner, f"{name} {child}")
    if not groups:
        yield (
            name,
            {
                spelling
                for action in parser._actions
                if action.help is not argparse.SUPPRESS
                for spelling in action.option_strings
                if spelling.startswith("--")
            },
        )


def nodeagent_commands() -> dict[str, set[str]]:
    return dict(click_commands(importlib.import_module("nodeagent.cli.main").cli, "nodeagent"))


def gpulease_commands() -> dict[str, set[str]]:
    parser = importlib.import_module("gpulease.cli").build_parser()
    return dict(argparse_commands(parser, "gpulease"))


@pytest.mark.parametrize("commands", [nodeagent_commands, gpulease_commands])
def test_every_command_and_option_is_documented(
    commands: Callable[[], dict[str, set[str]]], page: Read, same: Same
) -> None:
    """docs/cli.md has a section for each command, which names exactly its options."""
    cli, known = page("cli.md"), commands()
    program = next(iter(known)).split()[0]
    same("docs/cli.md", known, cli.headings(f"{program} "))
    once = cli.options(program) | cli.options(f"Options of a {program} request")  # said once, for several
    once -= {"--help", "--version"}
    assert once <= set().union(*known.values()), "docs/cli.md names options that no command has"
    for command, options in known.items():
        same(f"docs/cli.md, {command},", options - once - {"--help"}, cli.options(command) - once)


def routes() -> tuple[Any, ...]:
    app = importlib.import_module("nodeagent.api.app")
    return app.api_routes(None, app.ApiSettings(clock=None, version="0"))


def test_every_route_is_documented(page: Read, same: Same) -> None:
    """docs/api.md has a section for each method and path that the application answers."""
    known = {f"{route.method} {route.path}" for route in routes()}
    same("docs/api.md", known, {h for h in page("api.md").sections if ROUTE.match(h)})


def test_every_query_parameter_is_documented(page: Read) -> None:
    """The section of a route names each of its query parameters."""
    api = page("api.md")
    for route in routes():
        text = api.sections[f"{route.method} {route.path}"]
        missing = [one.name for one in route.query if not re.search(rf"`{one.name}\b", text)]
        assert not missing, f"docs/api.md, {route.method} {route.path}, says nothing of {', '.join(missing)}"


def test_every_status_is_documented(page: Read, same: Same) -> None:
    """docs/api.md explains each HTTP status that a route or a problem can have, and no other."""
    problems = importlib.import_module("nodeagent.api.problems")
    served = {status for route in routes() for status in (*route.promises, *route.all_problems)}
    served |= {kind.status for kind in [*problems.KINDS.values(), problems.METHOD_NOT_ALLOWED]} | {409}
    told = re.findall(r"^\| (\d{3}) \|", page("api.md").sections["Conventions"], re.M)
    same("docs/api.md", map(str, served), told)


@pytest.mark.parametrize(
    ("module", "model", "heading"),
    [
        ("models", "LeaseOrderBody", "Lease request"),
        ("models", "SliceBody", "Slice request"),
        ("models", "ContainerAnchor", "Container request"),
        ("answers", "LeaseAnswer", "Lease"),
        ("answers", "ContainerAnswer", "Container"),
        ("answers", "SliceAnswer", "Slice"),
        ("answers", "DeviceAnswer", "Device"),
        ("answers", "NodeAnswer", "Node"),
        ("answers", "EventAnswer", "Event"),
        ("answers", "ProblemAnswer", "Problem"),
    ],
)
def test_every_field_is_documented(module: str, model: str, heading: str, page: Read, same: Same) -> None:
    """docs/api.md has a row for each field of what is sent and answered."""
    fields = getattr(importlib.import_module(f"nodeagent.api.{module}"), model).model_fields
    same(f"docs/api.md, {heading},", fields, page("api.md").rows(heading))


def test_every_config_key_is_documented_with_its_default(page: Read, same: Same) -> None:
    """docs/config.md has a row for each key, and the default there is the default."""
    keys = importlib.import_module("nodeagent.config").keys()
    rows = page("config.md").rows("Configuration")
    same("docs/config.md", keys, rows)
    for key, (default, _) in keys.items():
        told = rows[key].split("|")[0].strip().strip("`")
        value = (
            default.value
            if isinstance(default, Enum)
            else str(default)
            if isinstance(default, Path)
            else default
        )
        assert json.loads(told) == value, f"docs/config.md says {key} = {told}; it is {value!r}"


def test_every_refusal_code_is_documented(page: Read, same: Same) -> None:
    """docs/refusals.md has a row for each refusal code."""
    same("docs/refusals.md", names.refusals(), page("refusals.md").rows("Refusal codes"))


def test_every_problem_code_is_documented_with_its_status(page: Read, same: Same) -> None:
    """docs/refusals.md has a row for each problem code, with the HTTP status that it comes with."""
    rows = page("refusals.md").rows("Problem codes")
    same("docs/refusals.md", names.problems(), rows)
    for kind in names.kinds_of_problem():
        assert int(rows[kind.code].split("|")[0]) == kind.status, kind.code


def test_every_code_of_the_client_is_documented(page: Read, same: Same) -> None:
    """docs/cli.md has a row for each code that gpulease itself gives, with its exit code."""
    own = {error.code: error.exit_code for error in names.kinds_of_error()}
    rows = page("cli.md").rows("Codes of gpulease itself")
    assert set(rows) <= set(own), f"docs/cli.md names {set(rows) - set(own)}, which do not exist"
    elsewhere = page("refusals.md").rows("Problem codes")
    same("docs/cli.md", set(own) - set(elsewhere), rows)
    for code, rest in rows.items():
        assert int(rest.split("|")[0]) == own[code], code


def test_the_library_is_documented(page: Read, same: Same) -> None:
    """docs/client.md has a row for each method of the client, and for each error."""
    gpulease = importlib.import_module("gpulease")
    methods = {name for name in vars(gpulease.Client) if not name.startswith("_")}
    errors = {error.__name__ for error in names.kinds_of_error()} & set(gpulease.__all__)
    same("docs/client.md", methods | errors, page("client.md").rows("Python library"))


def test_every_event_kind_is_documented(page: Read, same: Same) -> None:
    """docs/api.md has a row for each kind of event that the agent writes."""
    same("docs/api.md", names.events(), page("api.md").rows("Event kinds"))


def test_every_metric_is_documented(page: Read, same: Same) -> None:
    """docs/metrics.md has a row for each metric that the agent serves, whatever the node has."""
    told = [name for heading in METRICS for name in page("metrics.md").rows(heading)]
    same("docs/metrics.md", names.metrics(), told)


def test_every_shipped_machine_is_documented(page: Read, same: Same) -> None:
    """docs/machines.md has a row for each machine file."""
    files = {path.name.split(".")[0] for path in (ROOT / "tests" / "machines").glob("*.json*")}
    same("docs/machines.md", files, page("machines.md").rows("Machine files"))


def test_every_page_is_in_the_index(page: Read) -> None:
    """No page of the documentation is an orphan."""
    index = set(page("index.md").sections["nodeagent"].split())
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"} <= index


def test_the_tests_that_contributing_runs_exist() -> None:
    """Each pytest command in CONTRIBUTING.md names what is there, so that none of them selects nothing."""
    told = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\.venv/bin/pytest (\S+)(?: -k (\w+))?", told, re.M)
    assert commands
    for path, word in commands:
        assert (ROOT / path).exists(), path
        if word:
            assert re.search(rf"^def test_\w*{word}", (ROOT / path).read_text(encoding="utf-8"), re.M), word
