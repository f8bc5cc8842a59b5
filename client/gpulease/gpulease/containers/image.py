"""What is known of an image before a container of it starts, remembered by the image's id."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

from gpulease.containers.commandline import CommandLine
from gpulease.containers.engine import Engine, platform_of
from gpulease.containers.libc import UNKNOWN, libc_of, program_of
from gpulease.errors import EngineFailed

_VERSION = 1  # of what a remembered file says
_MOST_BYTES = 1 << 16
_ROCM = re.compile(rb"[0-9]{1,3}(\.[0-9]{1,3}){1,2}")
_ROCM_FILE = "/opt/rocm/.info/version"
_LIBC = re.compile(r"(glibc-2\.[0-9]{1,3}|musl(-1\.[0-9]{1,2}\.[0-9]{1,3})?|static|unknown)", re.ASCII)


@dataclass(frozen=True)
class Image:
    """*libc* as the API has it (``glibc-2.36``); *rocm* its version (``6.2.4``), None where there is none."""

    libc: str
    rocm: Optional[str]

    def __str__(self) -> str:
        libc = f"an {UNKNOWN} C library" if self.libc == UNKNOWN else self.libc.replace("-", " ")
        return libc if self.rocm is None else f"{libc}, ROCm {self.rocm}"


NO_IMAGE = Image(UNKNOWN, None)


@dataclass(frozen=True)
class Inspected:
    """What an engine says of an image."""

    id: str
    environment: Mapping[str, str]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Inspected:
        config = raw.get("Config") or {}
        entries = (str(one).partition("=") for one in config.get("Env") or ())
        return cls(
            id=str(raw.get("Id") or ""),
            environment={name: value for name, _, value in entries},
            entrypoint=_words(config.get("Entrypoint")),
            command=_words(config.get("Cmd")),
        )

    def program(self, line: CommandLine) -> Optional[str]:
        """What *line* starts in it: a new entry point does away with the image's command, too."""
        given, entrypoint = line.words_of_container, line.last("--entrypoint")
        if entrypoint:
            return program_of((*_entrypoint(entrypoint), *given))
        return program_of((*self.entrypoint, *(given or self.command)))


def fetched(engine: Engine, line: CommandLine) -> Inspected:
    """The image of *line*, which is pulled first where the engine would.

    Raises:
        EngineFailed: it cannot be had.
    """
    policy = line.last("--pull") or "missing"
    if policy == "always":
        engine.pull(line.image)
    found = engine.image(line.image)
    if found is None and policy != "never":
        engine.pull(line.image)
        found = engine.image(line.image)
    if found is None:
        raise EngineFailed(f"there is no image {line.image} here")
    return Inspected.from_raw(found)


def examined(engine: Engine, line: CommandLine, inspected: Inspected, cache: Optional[Path]) -> Image:
    """What there is in the image for the program that *line* starts; looked at once for each."""
    program = inspected.program(line)
    path = inspected.environment.get("PATH")
    memory = Memory(cache, repr((line.engine, inspected.id, *platform_of(line), program, path)))
    image = memory.recall()
    if image is None:
        with engine.files(line.image) as files:
            rocm = _ROCM.match(files.read(_ROCM_FILE, 64) or b"")
            libc = libc_of(files, program, path, os.uname().machine)
        image = Image(libc, rocm[0].decode("ascii") if rocm else None)
        memory.keep(image)
    return image


def cache_directory(environment: Mapping[str, str]) -> Optional[Path]:
    """Where this user's programs remember things; None where the environment does not tell."""
    base = environment.get("XDG_CACHE_HOME") or ""
    if not base.startswith("/"):
        home = environment.get("HOME") or ""
        base = f"{home}/.cache" if home.startswith("/") else ""
    return Path(base, "gpulease", "images") if base else None


class Memory:
    """One remembered image. Whatever is wrong with it, or with its place, means that it is not remembered."""

    def __init__(self, directory: Optional[Path], key: str) -> None:
        self._key = key
        # Any two names will do that differ: the file has its key in it. hashlib would take milliseconds.
        name = f"{zlib.crc32(key.encode('utf-8', 'surrogateescape')):08x}{len(key):04x}.json"
        self._path = None if directory is None else directory / name

    def recall(self) -> Optional[Image]:
        if self._path is None:
            return None
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_uid != os.geteuid():
                    return None
                raw = json.loads(file.read(_MOST_BYTES))
            if raw["version"] != _VERSION or raw["key"] != self._key or not _LIBC.fullmatch(raw["libc"]):
                return None
            rocm = raw["rocm"]
            return Image(raw["libc"], rocm) if rocm is None or _ROCM.fullmatch(rocm.encode()) else None
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def keep(self, image: Image) -> None:
        if self._path is None:
            return
        import tempfile

        directory = self._path.parent
        with suppress(OSError):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if directory.stat().st_uid != os.geteuid():  # sudo, with the user's own HOME
                return
            descriptor, name = tempfile.mkstemp(dir=directory)
            try:
                with os.fdopen(descriptor, "w") as file:
                    json.dump({"version": _VERSION, "key": self._key, **asdict(image)}, file)
                Path(name).replace(self._path)
            except OSError:
                Path(name).unlink()


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, str):  # podman of old
        return tuple(value.split())
    return tuple(str(one) for one in value) if isinstance(value, list) else ()


def _entrypoint(value: str) -> tuple[str, ...]:
    """podman takes a JSON list for several words."""
    if value.startswith("["):
        with suppress(ValueError):
            return _words(json.loads(value))
    return (value,)
