"""The settings shown: with what each is for, as TOML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nodeagent.config.policy_sections import TABLES
from nodeagent.config.section import Section
from nodeagent.config.sections import Config


def keys() -> dict[str, tuple[Any, str]]:
    """Every key as ``section.name`` with its default and description: for `config show` and the docs.

    Of a section that is written several times, those of each.
    """
    return {
        f"{section}.{name}": (
            getattr(getattr(Config(), section), name, field.default),
            field.description or "",
        )
        for section, outer in Config.model_fields.items()
        for name, field in (TABLES.get(section) or type(outer.default)).model_fields.items()
    }


def render(config: Config, source: Path | None = None) -> str:
    """*config* as TOML, each key with what it is for; what *source* set, and no default, names it."""
    lines: list[str] = []
    for section in Config.model_fields:
        value = getattr(config, section)
        if isinstance(value, Section):
            lines += [f"[{section}]", *_table(value, source)]
        elif isinstance(value, dict):
            for name, table in value.items():
                lines += [f"[{section}.{name}]", *_table(table, source)]
        else:
            for table in value:
                lines += [f"[[{section}]]", *_table(table, source)]
        if not value:
            lines += _unwritten(section)
        lines.append("")
    return "\n".join(lines).rstrip()


def document(config: Config, source: Path, complaints: Sequence[str]) -> dict[str, Any]:
    """The same for programs: every value, the keys that *source* set, and what of it was ignored."""
    tables = {name: getattr(config, name) for name in Config.model_fields}
    given = [
        f"{section}.{name}"
        for section, table in tables.items()
        if isinstance(table, Section)
        for name in sorted(table.model_fields_set)
    ]
    given += [section for section, table in tables.items() if table and not isinstance(table, Section)]
    return {
        "path": str(source),
        "settings": config.model_dump(mode="json"),
        "set": given,
        "ignored": list(complaints),
    }


def _table(table: Section, source: Path | None) -> Iterator[str]:
    for name, field in type(table).model_fields.items():
        if (value := getattr(table, name)) is None:
            continue  # TOML has no word for it
        origin = f"  # from {source}" if source and name in table.model_fields_set else ""
        yield f"# {field.description}"
        yield f"{name} = {_toml(value)}{origin}"


def _unwritten(section: str) -> Iterator[str]:
    """What a table of a section may say of which there is none, as a comment."""
    yield f"# [[{section}]]" if section == "quota" else f"# [{section}.NAME]"
    yield from (f"# {name}: {one.description}" for name, one in TABLES[section].model_fields.items())


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
