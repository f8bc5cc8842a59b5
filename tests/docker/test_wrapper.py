"""What `gpulease docker run` does with a real engine before there is a container, and what it adds to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from .host import Host

pytestmark = pytest.mark.docker
Image = Callable[[Host, str], str]
TAKE = ("--cu", "25%", "--vram", "8G", "--network=none")


def run(engine: Host, *words: str, **options: Any) -> Any:
    return engine.run("gpulease", engine.kind.client, "run", "--rm", *TAKE, *words, **options)


@pytest.mark.parametrize(
    ("name", "stated"),
    [("glibc", "glibc 2."), ("old", "glibc 2.31"), ("musl", "musl 1."), ("static", "static")],
)
def test_an_image_is_known_by_its_files(engine: Host, image: Image, name: str, stated: str) -> None:
    """The C library of the program is stated, and nothing is left of the look at the image."""
    done = run(engine, image(engine, name), "/bin/take", "1")
    assert f"; image {stated}" in done.stderr, done.stderr
    assert engine.containers() == []


def test_variables_of_the_image(engine: Host, image: Image) -> None:
    """What the image sets and the lease unsets is not there; what it loads into all programs stays loaded."""
    changes = ("--change=ENV HIP_VISIBLE_DEVICES=3", "--change=ENV AMD_VISIBLE_DEVICES=all")
    made = engine.said("create", image(engine, "busybox"), "true")
    engine.said("commit", *changes, made, "odd")
    engine.said("rm", made)
    done = run(engine, "odd", "env")
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert "ROCR_VISIBLE_DEVICES" in names, done.stderr
    assert not names & {"HIP_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES"}
    engine.said("rmi", "--force", "odd")


@pytest.mark.parametrize(
    "words",
    [("--tmpfs", "/run"), ("--read-only",), ("--user", "1000:1000"), ("--workdir", "/tmp", "-e", "A=1")],
)
def test_users_options_beside_the_leases(engine: Host, image: Image, words: tuple[str, ...]) -> None:
    """What the lease puts into a container is there, whatever the user has over or around it."""
    done = run(engine, *words, image(engine, "busybox"), "sh", "-c", "cat /etc/gpulease/*; ls /dev/dri")
    assert done.returncode == 0, done.stderr
    assert "renderD" in done.stdout


def test_a_dry_run_is_what_runs(engine: Host, image: Image) -> None:
    """The words of a dry run, with the lease's own in the brackets' place, are those that the engine gets."""
    words = ("--name=web", "-e", "A=b c", image(engine, "busybox"), "sleep", "1000")
    command = ("gpulease", engine.kind.client, "run", "--detach", *TAKE)
    dry = engine.run(*command, "--dry-run", *words)
    assert (dry.returncode, engine.containers()) == (0, [])
    assert engine.run(*command, *words).returncode == 0
    told = engine.inspect("web")
    assert "A=b c" in told["Config"]["Env"]
    assert {"gpulease.lease", "gpulease.ticket"} <= set(told["Config"]["Labels"])
    for word in ("--device=/dev/kfd", "--label-file=", "--cgroup-parent=", "-e 'A=b c'"):
        assert word in dry.stdout


def test_what_is_refused_starts_nothing(engine: Host, image: Image) -> None:
    """A command line that no lease could hold is 125, with neither lease nor container."""
    done = run(engine, "--privileged", image(engine, "busybox"), "true")
    assert done.returncode == 125
    assert done.stderr.splitlines()[-1].startswith("gpulease: BreaksFence: ")
    shown = json.loads(engine.run("gpulease", "--json", "status").stdout)
    assert (shown["leases"], engine.containers()) == ([], [])
