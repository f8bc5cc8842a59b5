"""What every command gets: the agent, two screens and its arguments."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpulease.client import Client
from gpulease.screen import Screen


@dataclass(frozen=True)
class Invocation:
    """One call of the program."""

    client: Client
    out: Screen
    err: Screen
    args: argparse.Namespace

    def body(self, raw: Mapping[str, Any], compact: bool = False) -> None:
        """Print a response body; everything beyond ASCII is escaped, as JSON has it."""
        for line in json.dumps(raw, indent=None if compact else 2).replace("\x7f", "\\u007f").splitlines():
            self.out.line(line)
