"""What docs/operations.md has an administrator write and type is right."""

from __future__ import annotations

import importlib
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S)
TYPED = sorted(
    {
        line[line.index("nodeagent ") :].strip()
        for kind, text in BLOCKS
        if kind in ("console", "sh", "")
        for line in text.splitlines()
        if re.match(r"([$#] |exec \S+/|\* .*/)nodeagent ", line)
    }
)


def test_the_settings_are_settings() -> None:
    """Each TOML block has known keys and values."""
    config = importlib.import_module("nodeagent.config")
    blocks = [text for kind, text in BLOCKS if kind == "toml"]
    assert blocks
    for text in blocks:
        config.Config.model_validate(tomllib.loads(text))


@pytest.mark.parametrize("line", TYPED)
def test_every_command_is_one(line: str) -> None:
    """Each parses with its arguments and options, and the page has at least ten."""
    assert len(TYPED) >= 10
    words = shlex.split(line)
    command: Any = importlib.import_module("nodeagent.cli.main").cli
    for number, word in enumerate(words[1:], 1):
        if not isinstance(command, click.Group):
            number -= 1
            break
        command = command.commands[word]
    command.make_context(command.name, words[number + 1 :])
