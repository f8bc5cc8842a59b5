"""The agent's log: for people on a terminal, else for programs."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from nodeagent.cli.logs import configure_logging


class Terminal(io.StringIO):
    """A stream that says that somebody sits before it."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def others_logging() -> Iterator[None]:
    """What other tests log by comes back."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()


def test_a_file_gets_json_lines() -> None:
    """One object a line, with time, level, event and what belongs to it; of libraries too."""
    stream = io.StringIO()
    configure_logging(stream)
    structlog.get_logger().warning("slice quarantined", lease=7, why="held")
    logging.getLogger("gunicorn.error").error("a connection failed: %s", "reset")
    logging.getLogger("alembic.runtime").info("not of interest")
    mine, theirs = map(json.loads, stream.getvalue().splitlines())
    assert mine.pop("at").endswith("Z") and theirs.pop("at")
    assert mine == {"event": "slice quarantined", "level": "warning", "lease": 7, "why": "held"}
    assert theirs == {"event": "a connection failed: reset", "level": "error"}


def test_a_hostile_text_stays_in_its_line() -> None:
    """Line ends, escape sequences and turned text reach neither a terminal nor another line."""
    stream = io.StringIO()
    configure_logging(stream)
    structlog.get_logger().info("x", why="a\n{}\x1b[2J\u202e")
    (line,) = stream.getvalue().splitlines()
    assert line.isascii() and "\x1b" not in line
    assert json.loads(line)["why"] == "a\n{}\x1b[2J\u202e"


def test_a_fault_has_its_trace() -> None:
    """The traceback is a field, and no lines between others."""
    stream = io.StringIO()
    configure_logging(stream)
    try:
        raise ValueError("made to fail")
    except ValueError as fault:
        structlog.get_logger().error("failed", exc_info=fault)
    assert "made to fail" in json.loads(stream.getvalue())["exception"]


def test_a_terminal_gets_plain_lines() -> None:
    """Key and value, the level first."""
    stream = Terminal()
    configure_logging(stream)
    structlog.get_logger().info("serving", socket="/run/x")
    assert stream.getvalue() == "level=info event=serving socket=/run/x\n"


def test_no_text_commands_the_terminal() -> None:
    """What users chose is written out: controls, escape sequences, turned text; a trace stays a line, too."""
    stream = Terminal()
    configure_logging(stream)
    structlog.get_logger().info("x", why="a\n\x1b[2J\x9b\u202e")
    logging.getLogger("gunicorn.error").error("y %s", "\x1b[2J\nlevel=info")
    assert stream.getvalue().replace("\n", "").isprintable()
    assert len(stream.getvalue().splitlines()) == 2
