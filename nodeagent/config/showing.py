"""The settings shown: with what each is for, as TOML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nodeagent.config.sections import Config


def keys() -> dict[str, tuple[Any, str]]:
    """Every key as ``section.name`` with its default and description: for `config show` and the docs."""
    return {
        f"{section}.{name}": (getattr(getattr(Config(), section), name), field.description or "")
        for section, outer in Config.model_fields.items()
        for name, field in type(outer.default).model_fields.items()
    }


def render(config: Config, source: Path | None = None) -> str:
    """*config* as TOML, each key with what it is for; what *source* set, and no default, names it."""
    lines: list[str] = []
    for section in Config.model_fields:
        lines.append(f"[{section}]")
        table = getattr(config, section)
        for name, field in type(table).model_fields.items():
            origin = f"  # from {source}" if source and name in table.model_fields_set else ""
            lines += [f"# {field.description}", f"{name} = {_toml(getattr(table, name))}{origin}"]
        lines.append("")
    return "\n".join(lines).rstrip()


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        pairs = ", ".join(f'"{key}" = {_toml(one)}' for key, one in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, int | float):
        return str(value)
    return json.dumps(str(value), ensure_ascii=False)  # a TOML string, but for pairs of surrogates
