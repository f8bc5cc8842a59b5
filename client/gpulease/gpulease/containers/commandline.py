"""A command line of a container engine's client, taken apart as the client itself would.

The rules are pflag's: a value follows its option as the next word or behind ``=``; a boolean takes one only
behind ``=``; short options stand together (``-it``, ``-eNAME=VALUE``); the first word that is none, or what
follows ``--``, is the image; from there on the words are the container's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

from gpulease.containers.flags import Flag, Table, Tables
from gpulease.errors import UsageError

COMMANDS = ("run", "create")
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})  # strconv.ParseBool
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


class HelpAsked(Exception):
    """``--help`` before the image: not the container's, and not only the engine's."""


@dataclass(frozen=True)
class Option:
    """One option as given: its long name, and its value; a boolean's is ``true`` where none was given."""

    name: str
    value: str

    @property
    def is_on(self) -> bool:
        """Whether a boolean is set. What the client will not understand counts as set."""
        return self.value not in _FALSE


@dataclass(frozen=True)
class CommandLine:
    """What was typed behind ``gpulease``.

    *before* are the words between program and command, *theirs* those between command and image, without
    *ours*; *rest* begins with the image (or with ``--``). ``engine``, ``before``, ``command``, ``theirs`` and
    ``rest``, joined, are what the user wrote but for what is ours.
    """

    engine: str
    before: tuple[str, ...]
    command: tuple[str, ...]
    theirs: tuple[str, ...]
    ours: tuple[Option, ...]
    rest: tuple[str, ...]
    program_options: tuple[Option, ...]
    options: tuple[Option, ...]

    @property
    def creates_only(self) -> bool:
        return self.command[-1] == "create"

    @property
    def image(self) -> str:
        return self.rest[1] if self.rest[0] == "--" else self.rest[0]

    @property
    def words_of_container(self) -> tuple[str, ...]:
        """What stands behind the image."""
        return self.rest[2 if self.rest[0] == "--" else 1 :]

    def values(self, *names: str) -> tuple[str, ...]:
        """The values of the options with these long names, in their order."""
        return tuple(option.value for option in self.options if option.name in names)

    def last(self, name: str) -> Optional[str]:
        """The value that counts of an option that can have one only; None where it was not given."""
        return next((option.value for option in reversed(self.options) if option.name == name), None)

    def is_on(self, name: str) -> bool:
        return self.last(name) is not None and self.last(name) not in _FALSE

    def engine_words(self, *added: str) -> list[str]:
        """The client's command line, with *added* behind the user's options, where they win."""
        return [self.engine, *self.before, *self.command, *self.theirs, *added, *self.rest]


def read(
    engine: str,
    words: Sequence[str],
    tables: Tables,
    ours: Table,
    learn: Callable[[], Table] = lambda: Table(()),
) -> CommandLine:
    """Take the *words* behind ``gpulease ENGINE`` apart.

    *learn* gives the installed client's own options, and is asked only about one that *tables* do not have.

    Raises:
        UsageError: no command of those that start a container, no image, or an option that nobody knows.
    """
    opening = _Reader(engine, words, tables.before, Table(()), lambda: Table(()))
    program_options = tuple(opening.options())
    before = tuple(opening.words[: opening.at])
    command = _command(engine, opening.words[opening.at :])
    rest = opening.words[opening.at + len(command) :]
    reader = _Reader(f"{engine} {' '.join(command)}", rest, tables.run, ours, learn)
    options = tuple(reader.options())
    image_at = reader.at + (reader.words[reader.at : reader.at + 1] == ["--"])
    if image_at >= len(reader.words):
        raise UsageError(f"no image: gpulease {engine} {command[-1]} [options] IMAGE [COMMAND] [ARG ...]")
    return CommandLine(
        engine=engine,
        before=before,
        command=command,
        theirs=tuple(reader.theirs),
        ours=tuple(reader.ours),
        rest=tuple(reader.words[reader.at :]),
        program_options=program_options,
        options=options,
    )


def _command(engine: str, words: Sequence[str]) -> tuple[str, ...]:
    command = tuple(words[:2]) if words[:1] == ["container"] else tuple(words[:1])
    if not command or command[-1] not in COMMANDS:
        given = f", not {' '.join(command)}" if command else ""
        raise UsageError(f"gpulease takes a lease for `{engine} run` and `{engine} create`{given}")
    return command


class _Reader:
    """Goes through words up to the first that is no option."""

    def __init__(
        self, what: str, words: Sequence[str], table: Table, ours: Table, learn: Callable[[], Table]
    ) -> None:
        self._what = what
        self._table = table
        self._ours = ours
        self._learn: Optional[Callable[[], Table]] = learn
        self.words = list(words)
        self.at = 0
        self.theirs: list[str] = []
        self.ours: list[Option] = []

    def options(self) -> Iterator[Option]:
        """The engine's options, as they come; *theirs* and *ours* fill meanwhile."""
        while self.at < len(self.words):
            word = self.words[self.at]
            if len(word) < 2 or word[0] != "-" or word == "--":
                return
            start = self.at
            self.at += 1
            if word == "--help":
                raise HelpAsked
            found = [*self._long(word)] if word.startswith("--") else [*self._short(word)]
            if self._ours.find(found[0].name):
                self.ours += found
                continue
            self.theirs += self.words[start : self.at]
            yield from found

    def _long(self, word: str) -> Iterator[Option]:
        name, equals, value = word.partition("=")
        flag = self._ours.find(name) or self._known(name)
        if flag is None and equals:  # one that only a newer client has: nothing of it can be misread
            yield Option(name, value)
        elif flag is None:
            raise UsageError(
                f"{self._what} has no option {name} that gpulease knows of; if yours has, write {name}=VALUE"
            )
        elif equals:
            yield Option(flag.name, value)
        elif flag.takes_value:
            yield Option(flag.name, self._next(name))
        else:
            yield Option(flag.name, "true")

    def _short(self, word: str) -> Iterator[Option]:
        letters = word[1:]
        while letters:
            spelling, letters = f"-{letters[0]}", letters[1:]
            flag = self._known(spelling)
            if flag is None:
                raise UsageError(f"{self._what} has no option {spelling} that gpulease knows of")
            if len(letters) > 1 and letters[0] == "=":
                yield Option(flag.name, letters[1:])
                return
            if flag.takes_value:
                yield Option(flag.name, letters or self._next(spelling))
                return
            yield Option(flag.name, "true")

    def _known(self, spelling: str) -> Optional[Flag]:
        flag = self._table.find(spelling)
        if flag is None and self._learn is not None:
            self._table, self._learn = self._table + self._learn(), None
            flag = self._table.find(spelling)
        return flag

    def _next(self, spelling: str) -> str:
        if self.at == len(self.words):
            raise UsageError(f"{self._what}: {spelling} needs a value")
        self.at += 1
        return self.words[self.at - 1]
