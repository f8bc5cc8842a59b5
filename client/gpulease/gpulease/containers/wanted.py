"""Our own options on an engine's command line: few, and none that the engine has."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Optional

from gpulease.containers.commandline import Option
from gpulease.containers.flags import Flag, Table
from gpulease.errors import UsageError
from gpulease.options import add_request_options, request_fields, value_of, whole_device
from gpulease.sizes import parse_duration

_PLAIN = frozenset({"--vram", "--cu", "--shape", "--queues", "--require", "--ttl", "--wait"})
CREATED_STARTS_WITHIN_SECONDS = 600


@dataclass(frozen=True)
class Wanted:
    """What is asked of the agent: the request's *fields*; and of us."""

    fields: dict[str, Any]
    note: Optional[str]
    restarts: bool
    start_seconds: Optional[int]
    dry_run: bool

    @property
    def floor(self) -> dict[str, str]:
        """What must hold the slice at least, by kind."""
        return self.fields["require"] or {}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of ``gpulease run``, most behind ``--lease-``: their plain names are the engines'."""
    add_request_options(parser, lambda name: name if name in _PLAIN else f"--lease-{name[2:]}")
    parser.add_argument(
        "--lease-restart",
        action="store_true",
        help="allow --restart: the lease outlives a container's ends",
    )
    parser.add_argument(
        "--lease-start-within",
        type=value_of(parse_duration),
        metavar="DUR",
        help="`create`: the lease ends when the container has not started by then (default 10m)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the engine's command line, do nothing")


class _Ours(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(message.removeprefix("argument "))


@lru_cache(maxsize=1)
def _parser() -> argparse.ArgumentParser:
    parser = _Ours(prog="gpulease", add_help=False, allow_abbrev=False)
    add_options(parser)
    return parser


def our_flags() -> Table:
    return Table(Flag(one.option_strings[0], None, one.nargs != 0) for one in _parser()._actions)


def wanted(given: Sequence[Option], creates_only: bool) -> Wanted:
    """What *given* of our options ask for.

    Raises:
        UsageError: a value that can never be right.
    """
    parser = _parser()
    switches = {one.option_strings[0] for one in parser._actions if one.nargs == 0}
    words = [
        one.name if one.name in switches else f"{one.name}={one.value}"
        for one in given
        if one.name not in switches or one.is_on
    ]
    args = parser.parse_args(words)
    if args.lease_start_within is not None and not creates_only:
        raise UsageError("--lease-start-within is for `create`: what `run` makes starts at once")
    within = args.lease_start_within or CREATED_STARTS_WITHIN_SECONDS
    return Wanted(
        fields=request_fields(args),
        note=whole_device(args),
        restarts=args.lease_restart,
        start_seconds=int(within) if creates_only else None,
        dry_run=args.dry_run,
    )
