"""Machine files: one node's sysfs as one JSON document that the agent can run on.

::

    {"format": 1, "machine": name, "description": text, "source": text, "made_up": bool,
     "files": {path: content}, "links": {path: target}, "unreadable": [path],
     "assumed": {"why": text, "files": {…}, "links": {…}}}

Paths are relative to ``/`` and below ``sys``. ``assumed`` holds what the capture lacks or repeats. An assumed
file may go on from a captured one of the same path, never change it. Bytes that are not UTF-8 are escaped as
lone surrogates (Python's surrogateescape), so content is kept byte for byte.
"""

from __future__ import annotations

import json
import lzma
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeagent.domain.errors import InvalidField, OutsideFault

FORMAT = 1
SIZE_LIMIT = 64 << 20  # bytes of JSON; the largest shipped machine has 2 MiB
PATH_LIMIT = 1024  # characters
TOP = "sys"
_KEYS = {"format", "machine", "description", "source", "made_up", "files", "links", "unreadable", "assumed"}


@dataclass(frozen=True, slots=True)
class Files:
    """Regular files by path, and symbolic links by path with their relative target."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine. *unreadable*: files that are there and give the agent EPERM."""

    name: str
    description: str
    source: str
    made_up: bool
    captured: Files
    unreadable: tuple[str, ...] = ()
    assumed: Files = Files()
    why: str = ""

    def content(self) -> Files:
        """Everything the machine shows: its assumed part in place of or beside what was captured."""
        return Files(
            {**self.captured.files, **self.assumed.files}, {**self.captured.links, **self.assumed.links}
        )


def load(path: Path) -> Machine:
    """The machine in *path*, ``.json`` or ``.json.xz``.

    Raises OutsideFault for a file that cannot be read or is no JSON, InvalidField for wrong content.
    """
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
            raw = file.read(SIZE_LIMIT + 1)
        if len(raw) > SIZE_LIMIT:
            raise OutsideFault(path, f"is over {SIZE_LIMIT} bytes, so not a machine file")
        document = json.loads(raw)
    except OSError as error:
        raise OutsideFault(path, f"cannot be read: {error.strerror or error}") from error
    except (lzma.LZMAError, EOFError) as error:
        raise OutsideFault(path, f"is no complete xz file: {error}") from error
    except (ValueError, RecursionError) as error:
        raise OutsideFault(path, f"is no JSON: {error}") from error
    try:
        return parse(document)
    except InvalidField as error:
        raise InvalidField(f"{path}: {error.field}", error.why) from error


def dump(machine: Machine, path: Path) -> None:
    """Write *machine* to *path*; the same machine gives the same bytes. A suffix ``.xz`` compresses."""
    text = json.dumps(document(machine), indent=1, ensure_ascii=True) + "\n"
    content = text.encode()
    if path.suffix == ".xz":
        content = lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise OutsideFault(path, f"cannot be written: {error.strerror or error}") from error


def document(machine: Machine) -> Mapping[str, Any]:
    """The machine as JSON values, in the order of the format's description."""
    return {
        "format": FORMAT,
        "machine": machine.name,
        "description": machine.description,
        "source": machine.source,
        "made_up": machine.made_up,
        **_files_document(machine.captured),
        "unreadable": sorted(machine.unreadable),
        "assumed": {"why": machine.why, **_files_document(machine.assumed)},
    }


def parse(value: Any) -> Machine:
    """The machine that a JSON document describes; raises InvalidField."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise InvalidField("format", f"is not {FORMAT}: not a machine file, or one of a newer nodeagent")
    unknown = sorted(set(value) - _KEYS)
    if unknown:
        raise InvalidField(unknown[0], "unknown field")
    part = value.get("assumed", {})
    if not isinstance(part, dict) or set(part) - {"why", "files", "links"}:
        raise InvalidField("assumed", "is not an object with why, files and links")
    unreadable = value.get("unreadable", [])
    if not isinstance(unreadable, list):
        raise InvalidField("unreadable", "is not a list")
    machine = Machine(
        name=_text(value, "machine"),
        description=_text(value, "description"),
        source=_text(value, "source"),
        made_up=value.get("made_up") is True,
        captured=_files(value, ""),
        unreadable=tuple(_path("unreadable", path) for path in unreadable),
        assumed=_files(part, "assumed."),
        why=_text(part, "why") if part.get("files") or part.get("links") else "",
    )
    _check_assumed(machine)
    _check_tree(machine)
    return machine


def _files_document(files: Files) -> Mapping[str, Any]:
    decoded = {path: files.files[path].decode("utf-8", "surrogateescape") for path in sorted(files.files)}
    return {"files": decoded, "links": dict(sorted(files.links.items()))}


def _files(value: Mapping[str, Any], prefix: str) -> Files:
    files = {}
    for path, content in _object(value, "files", prefix).items():
        try:
            files[_path(f"{prefix}files", path)] = content.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise InvalidField(f"{prefix}files.{path}", "holds a character that is no byte") from error
    links = {}
    for path, target in _object(value, "links", prefix).items():
        links[_path(f"{prefix}links", path)] = target
        _check_target(f"{prefix}links.{path}", path, target)
    return Files(files, links)


def _object(value: Mapping[str, Any], key: str, prefix: str) -> Mapping[str, str]:
    found = value.get(key, {})
    if not isinstance(found, dict) or not all(isinstance(content, str) for content in found.values()):
        raise InvalidField(f"{prefix}{key}", "is not an object of texts by path")
    return found


def _text(value: Mapping[str, Any], key: str) -> str:
    text = value.get(key)
    if not isinstance(text, str) or not text:
        raise InvalidField(key, "is missing, empty or not a text")
    return text


def _path(where: str, path: Any) -> str:
    """A path that stays below sys in any directory it is written to."""
    plain = isinstance(path, str) and path.isascii() and path.isprintable() and len(path) <= PATH_LIMIT
    parts = path.split("/") if plain else []
    if len(parts) < 2 or parts[0] != TOP or any(part in ("", ".", "..") for part in parts):
        raise InvalidField(where, f"{str(path)[:80]!r} is not a plain relative path below {TOP}/")
    return str(path)


def _check_target(where: str, path: str, target: str) -> None:
    """``..`` only leads, so that no link on the way can turn it out of the tree."""
    parts = target.split("/")
    climbs = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if ".." in parts[climbs:]:
        raise InvalidField(where, "has `..` behind a name")
    _path(where, inside)


def _check_assumed(machine: Machine) -> None:
    for path, content in machine.assumed.files.items():
        if not content.startswith(machine.captured.files.get(path, b"")):
            raise InvalidField(f"assumed.files.{path}", "changes captured content instead of extending it")
    twice = sorted(machine.assumed.links.keys() & machine.captured.links.keys())
    if twice:
        raise InvalidField(f"assumed.links.{twice[0]}", "is a captured link, too")


def _check_tree(machine: Machine) -> None:
    """No path is two things, and none lies below a file or link."""
    shown = machine.content()
    leaves = [*(shown.files.keys() | set(machine.unreadable)), *shown.links]
    known = set(leaves)
    if len(known) != len(leaves):
        raise InvalidField("links", "a path is both a file and a link")
    for path in leaves:
        parent = posixpath.dirname(path)
        while parent:
            if parent in known:
                raise InvalidField(path, f"lies below {parent}, which is a file or link")
            parent = posixpath.dirname(parent)
