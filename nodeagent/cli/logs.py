"""The agent's log on stderr: lines for a terminal, JSON for everything else that reads it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from gpulease.screen import safe


def configure_logging(stream: TextIO | None = None) -> None:
    """Send what the agent and its libraries say to *stream* (stderr), one line each.

    On a terminal as key=value, else as JSON in ASCII: in neither can a text end its line, or command the
    terminal of who reads it.
    """
    stream = sys.stderr if stream is None else stream
    shown = _for_people() if stream.isatty() else _for_programs()
    chain: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*chain, *shown],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(stream),
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(processors=[_plain, *shown], foreign_pre_chain=chain)
    )
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)


def _for_people() -> Sequence[Processor]:
    return [_escaped, structlog.processors.LogfmtRenderer(key_order=["level", "event"], bool_as_flag=False)]


def _escaped(_logger: WrappedLogger, _method: str, told: EventDict) -> EventDict:
    return {name: safe(value) if isinstance(value, str) else value for name, value in told.items()}


def _for_programs() -> Sequence[Processor]:
    return [
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.JSONRenderer(ensure_ascii=True, default=str),
    ]


_plain = structlog.stdlib.ProcessorFormatter.remove_processors_meta
