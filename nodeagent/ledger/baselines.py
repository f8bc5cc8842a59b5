"""The file beside the database that keeps idle baselines over a restart of the agent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog

from nodeagent.domain.baseline import Baseline
from nodeagent.ledger.files import write_durably

log = structlog.get_logger()


class BaselineFile:
    """JSON: ``{pool: {"boot_id": …, "epochs": {device: n}, "idle_bytes": n}}``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, Baseline]:
        """What was kept. A file that cannot be read is as good as none, and the log says why."""
        try:
            told = json.loads(self._path.read_bytes())
            return {str(pool): _parsed(one) for pool, one in told.items()}
        except FileNotFoundError:
            return {}
        except (OSError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as fault:
            log.error("idle baselines are lost", path=str(self._path), why=repr(fault))
            return {}

    def write(self, baselines: Mapping[str, Baseline]) -> None:
        """Replace what was kept. Raises OSError."""
        write_durably(self._path, json.dumps({pool: asdict(one) for pool, one in baselines.items()}))


def _parsed(told: Mapping[str, Any]) -> Baseline:
    idle, epochs = told["idle_bytes"], told["epochs"]
    if not isinstance(idle, int) or idle < 0:
        raise ValueError(f"idle_bytes: {idle!r} is no size")
    return Baseline(str(told["boot_id"]), {str(key): int(epoch) for key, epoch in epochs.items()}, idle)
