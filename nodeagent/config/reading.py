"""Reading the settings' file: strictly, to name each mistake, and so that a start goes on without it."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nodeagent.config.sections import Config, Guarantee, Web
from nodeagent.domain.errors import InvalidField

WHOLE = ("quota", "classes")  # sections of tables, each of which says whom it holds for
RESERVED = ("devices", "reserved")
DEFAULT_PATH = Path("/etc/nodeagent/nodeagent.toml")


def read(path: Path) -> dict[str, Any]:
    """The file's tables; an absent file is an empty one.

    Raises:
        InvalidField: it is no TOML, or others than root and the agent's own user could have written it.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise InvalidField(str(path), "must belong to root and be writable by nobody else")
            return tomllib.load(file)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InvalidField(str(path), f"cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidField(str(path), f"no valid TOML: {error}") from None


def check(path: Path) -> tuple[Config, list[str]]:
    """The settings of *path* and every complaint, each naming its key; what is wrong keeps its default.

    But for the floor, a mistyped one demands the strongest, for a reservation, which is for nobody then, and
    for the listener, which is not opened: no typo grants what was to be refused, or serves without the token
    that was meant.
    """
    tables = read(path)
    complaints: list[str] = []
    while True:
        try:
            config = Config.model_validate(tables)
            if any(one.startswith("guarantee") for one in complaints):
                complaints.append('guarantee.memory: is "kernel" until this section is mended')
                config = config.model_copy(update={"guarantee": Guarantee(memory="kernel")})
            if any(one.startswith("web") for one in complaints):
                complaints.append("web.listen: nothing is served by TCP until this section is mended")
                config = config.model_copy(update={"web": Web()})
            if any(one.startswith("devices.reserved") for one in complaints):
                complaints.append("devices.reserved: what is wrong there admits nobody until it is mended")
            return config, complaints
        except ValidationError as error:
            problems = error.errors()
            complaints += [f"{_named(problem['loc'])}: {_plain(problem)}" for problem in problems]
            wrong = dict.fromkeys(_to_drop(problem["loc"]) for problem in problems)
            for where in reversed(wrong):  # so that the numbers of those before stay
                _drop(tables, where)
                _close(tables, where)


def verdict(path: Path) -> str:
    """What to say of settings that have no complaint."""
    return f"{path} is well" if path.exists() else f"{path} is absent, so every default holds"


def _plain(problem: Any) -> str:
    if problem["type"] == "extra_forbidden":
        return "unknown key; `nodeagent config show` lists all"
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    return f"{problem['msg']} (got {problem['input']!r})"


def _named(where: tuple[int | str, ...]) -> str:
    """*where* without what pydantic says beside keys: which of several types a value is none of."""
    return ".".join(map(str, where[:3] if where[0] in WHOLE else where))


def _to_drop(where: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Of a table that says whom it holds for all, since without a part it would hold for others."""
    return where[:2] if where[0] in WHOLE else where


def _drop(tables: Any, where: tuple[int | str, ...]) -> None:
    for part in where[:-1]:
        inner = tables.get(part)
        if not isinstance(inner, dict | list):
            tables.pop(part, None)
            return
        tables = inner
    if isinstance(tables, list):
        del tables[int(where[-1])]
    else:
        tables.pop(where[-1], None)


def _close(tables: dict[str, Any], where: tuple[int | str, ...]) -> None:
    """Reserve for nobody what was dropped whole: else it would be anybody's."""
    if where == RESERVED:
        tables["devices"]["reserved"] = {"*": []}
    elif where[:-1] == RESERVED:
        tables["devices"]["reserved"][where[-1]] = []
