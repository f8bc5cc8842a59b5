"""An engine's command line is taken apart as the engine's own client would, and put together again."""

from __future__ import annotations

from typing import Any

import pytest

from gpulease.containers.commandline import CommandLine, read
from gpulease.containers.flags import Flag, Table, tables_of
from gpulease.containers.wanted import our_flags
from gpulease.errors import UsageError


def parsed(words: list[str], engine: str = "docker", **settings: Any) -> CommandLine:
    return read(engine, words, tables_of(engine), our_flags(), **settings)


@pytest.mark.parametrize(
    ("words", "options", "rest"),
    [
        ("run img sh -c x", [], "img sh -c x"),
        ("run -it img", [("--interactive", "true"), ("--tty", "true")], "img"),
        (
            "run -itd --rm img --rm",
            [*((f"--{x}", "true") for x in ("interactive", "tty", "detach", "rm"))],
            "img --rm",
        ),
        ("run -eFOO img", [("--env", "FOO")], "img"),
        ("run -e=FOO=1 img", [("--env", "FOO=1")], "img"),
        ("run -e FOO=1 -e BAR img", [("--env", "FOO=1"), ("--env", "BAR")], "img"),
        ("run -itp80:80 img", [("--interactive", "true"), ("--tty", "true"), ("--publish", "80:80")], "img"),
        ("run -p 80:80 img", [("--publish", "80:80")], "img"),
        ("run -i=false img", [("--interactive", "false")], "img"),
        ("run --privileged=false img", [("--privileged", "false")], "img"),
        ("run --name=a=b img", [("--name", "a=b")], "img"),
        ("run --name --rm img", [("--name", "--rm")], "img"),
        ("run --name= img", [("--name", "")], "img"),
        ("run --init -- img -it", [("--init", "true")], "-- img -it"),
        ("run -m=1g -- -odd", [("--memory", "1g")], "-- -odd"),
        ("run - a", [], "- a"),
    ],
)
def test_words(words: str, options: list[tuple[str, str]], rest: str) -> None:
    """Values, booleans, clusters and the end of options are where docker sees them."""
    line = parsed(words.split())
    assert [(one.name, one.value) for one in line.options] == options
    assert " ".join(line.rest) == rest
    assert line.engine_words() == ["docker", *words.split()]


def test_ours_are_taken_out() -> None:
    """Our options may stand anywhere before the image; what is docker's stays in its order."""
    words = (
        "-H unix:///s --debug container run -it --vram 8G "
        "-e --vram --lease-gpus=2 --lease-restart --rm img --vram 1"
    )
    line = parsed(words.split())
    theirs = "docker -H unix:///s --debug container run -it -e --vram --rm img --vram 1"
    assert " ".join(line.engine_words()) == theirs
    assert [(one.name, one.value) for one in line.ours] == [
        ("--vram", "8G"),
        ("--lease-gpus", "2"),
        ("--lease-restart", "true"),
    ]
    assert [(one.name, one.value) for one in line.program_options] == [
        ("--host", "unix:///s"),
        ("--debug", "true"),
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("run", "no image"),
        ("run -it", "no image"),
        ("run -it --", "no image"),
        ("run --vram 1G", "no image"),
        ("run --name", "--name needs a value"),
        ("run -e", "-e needs a value"),
        ("run --no-such img", "--no-such"),
        ("run -Z img", "-Z"),
        ("", "docker run"),
        ("ps", "not ps"),
        ("container ls", "not container ls"),
        ("-H", "-H needs a value"),
        ("--nothing run img", "--nothing"),
    ],
)
def test_what_cannot_be_read(words: str, why: str) -> None:
    """What docker would misread, or we would, is an error that names it."""
    with pytest.raises(UsageError, match=why):
        parsed(words.split())


def test_an_option_of_a_newer_client() -> None:
    """With its value behind = it passes; else the installed client is asked, once, whether it takes one."""
    assert parsed(["run", "--new=1", "img"]).theirs == ("--new=1",)
    asked = []

    def learn() -> Table:
        asked.append(1)
        return Table([Flag("--new", "-N", True), Flag("--newer", None, False)])

    line = parsed(["run", "--new", "a", "--newer", "-Nb", "img"], learn=learn)
    assert (line.theirs, line.rest, asked) == (("--new", "a", "--newer", "-Nb"), ("img",), [1])


def test_no_option_of_ours_is_an_engines() -> None:
    """Our options never take one away from an engine."""
    for engine in ("docker", "podman", "nerdctl"):
        tables = tables_of(engine)
        for flag in our_flags().flags:
            assert tables.run.find(flag.name) is None and tables.before.find(flag.name) is None
