"""The model of the protocol speaks of the code: its states, its methods, and mistakes that are all tried."""

from __future__ import annotations

import importlib
import inspect
import re
from enum import StrEnum
from pathlib import Path

import pytest

from nodeagent.domain.lease import LeaseState, SliceState

ROOT = Path(__file__).resolve().parents[2]
MODEL = (ROOT / "docs/model/lease.pml").read_text(encoding="utf-8")
CHECK = (ROOT / "docs/model/check").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/model.md").read_text(encoding="utf-8")
SETTINGS = {"SERVERS", "KILLS", "POWER_LOSSES", "BACKUPS", "REQUESTS", "STUCK"}
MODULES = ("booking", "grant", "release", "attach", "launch", "reconcile", "effects")


def mistakes() -> set[str]:
    return set(re.findall(r"^#ifn?def (\w+)", MODEL, re.M)) - SETTINGS


@pytest.mark.parametrize("states", [LeaseState, SliceState])
def test_the_states_are_the_codes(states: type[StrEnum]) -> None:
    """The model has every state of a lease and of a slice, in the code's order, and no other."""
    (listed,) = re.findall(rf"^mtype:{states.__name__} = \{{ (.*) \}};", MODEL, re.M)
    assert listed.split(", ") == [state.name for state in states]


def test_what_the_model_names_is_in_the_code() -> None:
    """Each method that a comment of the model names exists, in the class it names."""
    classes = {
        name: value
        for module in MODULES
        for name, value in inspect.getmembers(
            importlib.import_module(f"nodeagent.service.{module}"), inspect.isclass
        )
    }
    named = re.findall(r"\b([A-Z]\w+)\.(_?[a-z]\w+)", "\n".join(re.findall(r"/\*.*?\*/", MODEL, re.S)))
    assert len(named) > 8
    assert not [f"{owner}.{method}" for owner, method in named if not hasattr(classes.get(owner), method)]


def test_every_mistake_is_tried_and_told() -> None:
    """Each mistake that the model can make is one that spin has to find, and that the page explains."""
    tried = {
        word for line in CHECK.split("for mistake in")[1:] for word in re.findall(r"\b[A-Z_]{6,}\b", line)
    }
    assert tried - {"RESTORED", "KILLED", "MISSED", "FAILED"} == mistakes()
    assert set(re.findall(r"^\| `([A-Z_]+)`", PAGE, re.M)) == mistakes()
