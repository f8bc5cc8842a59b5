"""The names that others build on, read from the code itself: codes, events, metrics, settings."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def refusals() -> set[str]:
    """Why a request does not fit."""
    return {code.value for code in importlib.import_module("nodeagent.domain.refusals").Code}


def kinds_of_problem() -> tuple[Any, ...]:
    """Every kind of problem document, with its code and status."""
    module = importlib.import_module("nodeagent.api.problems")
    return (*module.KINDS.values(), *(one for one in vars(module).values() if isinstance(one, module.Kind)))


def problems() -> set[str]:
    """The codes of problem documents."""
    return {kind.code for kind in kinds_of_problem()}


def kinds_of_error() -> Iterator[type[Any]]:
    """The client's errors."""
    yield from _tree(importlib.import_module("gpulease.errors").GpuleaseError)


def errors() -> set[str]:
    """The codes of the client's errors that no problem document has."""
    return {kind.code for kind in kinds_of_error()} - problems() - {"Fault"}


def _tree(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


def events() -> set[str]:
    """What use cases and wiring hand to ``event(…)``, directly or as *kind* through a method that does."""
    package = ROOT / "nodeagent"
    modules = (*(package / "service").glob("*.py"), *(package / "wiring").glob("*.py"))
    return {kind for path in modules for kind in _kinds(ast.parse(path.read_text(encoding="utf-8")))}


def _kinds(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef):
            kinds = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            told = [default for argument, default in kinds if argument.arg == "kind" and default]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            told = node.args[:1] if node.func.attr == "event" else []
            told += [keyword.value for keyword in node.keywords if keyword.arg == "kind"]
        else:
            continue
        for argument in told:
            yield from _literals(argument)


def _literals(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.IfExp):
        yield from _literals(node.body)
        yield from _literals(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def metrics() -> set[str]:
    """The metrics that the agent serves, whatever the node has."""
    module = importlib.import_module("nodeagent.api.metrics")
    node = SimpleNamespace(
        name="x", version="0", ready=True, bypass=None, observed={}, modes=SimpleNamespace(observed=())
    )
    agent = SimpleNamespace(
        node=lambda: node,
        inventory=lambda: SimpleNamespace(devices=()),
        held=lambda: (),
        measures=importlib.import_module("nodeagent.domain.measures").Measures,
    )
    text = module.exposition(module.AgentCollector(agent, module.RefusalCounter(), leases=True))
    return set(re.findall(r"^# TYPE (\S+)", text, re.M))


def settings() -> set[str]:
    """The keys of the configuration, ``section.name``."""
    return set(importlib.import_module("nodeagent.config").keys())


CATEGORIES: dict[str, Callable[[], set[str]]] = {
    "refusal": refusals,
    "problem": problems,
    "error": errors,
    "event": events,
    "metric": metrics,
    "setting": settings,
}


MENTIONS = {  # how the text of a test names something
    "refusal": r"\b(?:Code\.)?[A-Z]\w+",
    "problem": r"\b[A-Z]\w+",
    "error": r"\b[A-Z]\w+",
    "event": r"[\"'](\w+)[\"']",
    "metric": r"\b[a-z]\w+",
    "setting": r"\b\w+\.\w+|\b\w+(?=[\"']?\s*[=:])",  # or a word that is given a value
}


def unnamed(category: str, names: Iterable[str], text: str) -> list[str]:
    """Those of *names* that the text of a test does not have."""
    mentions = set(re.findall(MENTIONS[category], text.replace("\\n", "\n")))
    return [name for name in sorted(names) if not mentions.intersection(_spellings(category, name))]


def _spellings(category: str, name: str) -> tuple[str, ...]:
    if category == "refusal":
        return name, f"Code.{importlib.import_module('nodeagent.domain.refusals').Code(name).name}"
    if category == "setting":
        return name, name.rpartition(".")[2]
    return name, f"{name}Error"  # as UsageError, whose code is Usage
