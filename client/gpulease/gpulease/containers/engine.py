"""An engine's own client, asked for what we need to know of an image."""

from __future__ import annotations

import json
import posixpath
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from gpulease.containers.commandline import CommandLine
from gpulease.containers.daemon import Daemon
from gpulease.containers.flags import Table, table_from_help, tables_of
from gpulease.errors import EngineFailed

if TYPE_CHECKING:  # of a known image neither is needed
    from subprocess import CompletedProcess, Popen
    from tarfile import TarInfo

_PIPE = -1  # subprocess.PIPE
_MOST_LINKS = 16
# Where podman looks (containers/common, pkg/config: DefaultInitPath and helper_binaries_dir).
_CATATONIT = tuple(
    f"{directory}/catatonit"
    for directory in (
        "/usr/local/libexec/podman",
        "/usr/local/lib/podman",
        "/usr/libexec/podman",
        "/usr/lib/podman",
        "/usr/bin",
    )
)
_OF_PLATFORM = frozenset({"--arch", "--os", "--platform", "--variant"})


class Engine:
    """The client of *line*, with its options before the command; what *daemon* knows is asked of it.

    Every failure is an EngineFailed.
    """

    def __init__(self, line: CommandLine, environment: Mapping[str, str], daemon: Optional[Daemon]) -> None:
        self._line = line
        self._daemon = daemon
        self._start = [line.engine, *line.before]
        self._environment = dict(environment)

    def image(self, name: str) -> Optional[Mapping[str, Any]]:
        """What ``image inspect`` says; None of an image that is not here."""
        if self._daemon is not None:
            return self._daemon.image(name)
        done = self._run("image", "inspect", name)
        if done.returncode:
            return None
        try:
            found = json.loads(done.stdout)[0]
        except (ValueError, LookupError):
            found = None
        if not isinstance(found, dict):
            raise EngineFailed(f"{self._line.engine} image inspect {name}: not understood")
        return found

    def pull(self, name: str) -> None:
        """Fetch an image, with the user's own options for it; what the client prints goes to stderr."""
        known = tables_of(self._line.engine).pull
        options = [f"{one.name}={one.value}" for one in self._line.options if known.find(one.name)]
        sys.stderr.flush()
        done = self._call([*self._start, "pull", *options, name], output=2, errors=2)
        if done.returncode:
            raise EngineFailed(f"{self._line.engine} pull {name}: exit {done.returncode}")

    @contextmanager
    def files(self, image: str) -> Iterator[ImageFiles]:
        """The files of an image, in a container that is made for it and never started."""
        made = self._run("create", "--network=none", *platform_of(self._line), image, "gpulease")
        if made.returncode:
            raise EngineFailed(f"{self._line.engine} create {image}: {_last(made.stderr)}")
        container = made.stdout.decode("ascii", "replace").split()[-1]
        try:
            yield ImageFiles(self, container)
        finally:
            self._run("rm", container)

    def copied(self, source: str) -> Popen[bytes]:
        """A running ``cp`` of *source* as a tar stream."""
        from subprocess import DEVNULL, PIPE, Popen

        words = [*self._start, "cp", source, "-"]
        return Popen(words, env=self._environment, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)

    def _run(self, *words: str) -> CompletedProcess[bytes]:
        return self._call([*self._start, *words])

    def _call(
        self, words: Sequence[str], output: int = _PIPE, errors: int = _PIPE
    ) -> CompletedProcess[bytes]:
        return called(words, self._environment, output, errors)


@dataclass(frozen=True)
class ImageFiles:
    """Files by path, as `gpulease.containers.libc` wants them. The engine itself keeps links in the image."""

    engine: Engine
    container: str

    def read(self, path: str, most: int) -> Optional[bytes]:
        for _ in range(_MOST_LINKS):
            member, content = self._member(path, most)
            if member is None or not member.issym():
                return content
            path = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), member.linkname))
        return None

    def _member(self, path: str, most: int) -> tuple[Optional[TarInfo], Optional[bytes]]:
        """What is at *path*, and its first bytes if it is a file; the rest of the stream is not taken."""
        import tarfile

        process = self.engine.copied(f"{self.container}:{path}")
        assert process.stdout is not None
        try:
            with suppress(tarfile.TarError, EOFError), tarfile.open(fileobj=process.stdout, mode="r|") as tar:
                member = tar.next()
                file = tar.extractfile(member) if member is not None and member.isreg() else None
                return member, None if file is None else file.read(most)
            return None, None
        finally:
            process.stdout.close()
            process.kill()
            process.wait()


def has_init(line: CommandLine, environment: Mapping[str, str]) -> bool:
    """Whether the engine finds its init program: docker brings one, and without theirs the others fail."""
    if line.engine == "podman":
        return any(Path(one).exists() for one in _CATATONIT)
    if line.engine == "docker":
        return True
    from shutil import which

    return which("tini", path=environment.get("PATH")) is not None


def platform_of(line: CommandLine) -> list[str]:
    """The options that say which of an image's platforms is meant: all go by one name, and may by one id."""
    return [f"{one.name}={one.value}" for one in line.options if one.name in _OF_PLATFORM]


def flags_of(engine: str, environment: Mapping[str, str]) -> Table:
    """The options of ``run`` that the installed client lists."""
    return table_from_help(called([engine, "run", "--help"], environment).stdout.decode("utf-8", "replace"))


def called(
    words: Sequence[str], environment: Mapping[str, str], output: int = _PIPE, errors: int = _PIPE
) -> CompletedProcess[bytes]:
    """A client's call to its end, without input.

    Raises:
        EngineFailed: there is no such client.
    """
    from subprocess import DEVNULL, run

    try:
        return run(words, env=dict(environment), stdin=DEVNULL, stdout=output, stderr=errors, check=False)
    except OSError as fault:
        raise EngineFailed(f"{words[0]}: {fault.strerror}: is it installed?") from None


def _last(said: bytes) -> str:
    lines = said.decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")
