"""Notes what the product does in a run of tests: refuse by a code, write an event, read a setting, and so on.

It is in each process of a run (site/), agents that tests start included, and writes a line for each thing to
the file that NODEAGENT_EXERCISED names: ``category<TAB>name<TAB>test module``. Only what the product's own
modules do counts: a test that writes an event by hand notes nothing. Nothing is imported for it; modules are
changed as they are loaded.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType
from typing import Any

_noted: set[tuple[str, str, str]] = set()


def note(category: str, name: str) -> None:
    """Write it down, once for each test module. A process that may not, another user's, notes nothing."""
    line = (category, name, os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0])
    if not line[-1] or line in _noted:
        return
    _noted.add(line)
    try:
        file = os.open(os.environ["NODEAGENT_EXERCISED"], os.O_WRONLY | os.O_APPEND)
    except (KeyError, OSError):
        return
    os.write(file, ("\t".join(line) + "\n").encode())
    os.close(file)


def by_the_product(frame: FrameType) -> bool:
    """Whether the code of *frame* is no test's. What shows the settings does not act by them."""
    module = str(frame.f_globals.get("__name__", ""))
    return module.startswith(("nodeagent.", "gpulease.")) and module != "nodeagent.config.showing"


def before(owner: Any, name: str, noted: Callable[..., None]) -> None:
    """Have *noted* called, with the same arguments, before each call of *owner*'s function by the product."""
    real = getattr(owner, name)

    def watched(*given: Any, **named: Any) -> Any:
        if by_the_product(sys._getframe(1)):
            noted(*given, **named)
        return real(*given, **named)

    setattr(owner, name, watched)


def refusals(module: ModuleType) -> None:
    def noted(_self: object, *given: object, **named: object) -> None:
        for one in (*given, *named.values()):
            if isinstance(one, module.Code):
                note("refusal", one.value)

    before(module.Refusal, "__init__", noted)
    before(module.DeviceRefusal, "__init__", noted)


def problems(module: ModuleType) -> None:
    before(module, "problem", lambda kind, *rest, **more: note("problem", kind.code))


def errors(module: ModuleType) -> None:
    before(module.GpuleaseError, "__init__", lambda self, *rest, **more: note("error", self.code))


def events(module: ModuleType) -> None:
    before(module.Records, "event", lambda self, kind, **more: note("event", kind))


def metrics(module: ModuleType) -> None:
    real = module.exposition

    def exposition(collector: object) -> str:
        text: str = real(collector)
        for sample in (line for line in text.splitlines() if line[0] != "#"):
            if float(sample.rpartition(" ")[2]):
                note("metric", sample.partition("{")[0].partition(" ")[0])
        return text

    module.exposition = exposition


def settings(module: ModuleType) -> None:
    base, own = module.Config.__base__, module.Config.model_fields
    tables = sys.modules["nodeagent.config.policy_sections"].TABLES
    sections = {field.annotation: f"{name}." for name, field in own.items()} | {module.Config: ""}
    sections |= {table: f"{name}." for name, table in tables.items()}
    real = base.__getattribute__

    def read(section: Any, name: str) -> Any:
        value, kind = real(section, name), type(section)
        field = kind.model_fields.get(name) if kind in sections else None
        if field is not None and value != field.default and by_the_product(sys._getframe(1)):
            note("setting", sections[kind] + name)
        return value

    base.__getattribute__ = read


CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "gpulease.errors": errors,
    "nodeagent.api.metrics": metrics,
    "nodeagent.api.problems": problems,
    "nodeagent.config.sections": settings,
    "nodeagent.domain.refusals": refusals,
    "nodeagent.ledger.records": events,
}


class Changer(importlib.abc.MetaPathFinder):
    """Finds the modules that are to be changed where everybody does, and changes them once loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        change = CHANGES.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if change else None
        if change is None or spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def loaded(module: ModuleType) -> None:
            load(module)
            change(module)

        spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec
