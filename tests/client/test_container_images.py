"""`gpulease docker run` looks at the image before it asks for a lease: what its program is loaded with."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .elf import glibc, musl, program
from .engine import FakeEngine

SHARE = ("--vram", "1G")


def test_image_is_looked_at_once(engine: FakeEngine, run: Any) -> None:
    """An image is looked at in a container that never starts, and remembered by its id."""
    run("docker", "run", *SHARE, "img")
    first = engine.words()
    assert [words[0] for words in first] == ["create", *["cp"] * (len(first) - 3), "rm", "run"]
    run("docker", "run", *SHARE, "img")
    assert [words[0] for words in engine.words()[len(first) :]] == ["run"]
    (file,) = engine.cache.iterdir()
    assert (engine.cache.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    engine.image("img", Cmd=["/bin/other"])
    run("docker", "run", *SHARE, "img")
    assert len(engine.words()) > len(first) + 2  # another program: looked at anew


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff", b'{"version": 1, "libc": "glibc; rm", "rocm": null}', b"[1]"]
)
def test_bad_memory(agent: Any, engine: FakeEngine, run: Any, content: bytes) -> None:
    """A remembered image that is not what we wrote is looked at anew."""
    run("docker", "run", *SHARE, "img")
    (file,) = engine.cache.iterdir()
    file.write_bytes(content)
    assert run("docker", "run", *SHARE, "img").returncode == 0
    assert agent.called("POST", "/v1/leases$")[1]["anchor"]["libc"] == "glibc-2.36"


def test_memory_of_another_image(agent: Any, engine: FakeEngine, run: Any) -> None:
    """A remembered image is believed of itself alone, whatever its file is called."""
    run("docker", "run", *SHARE, "img")
    (file,) = engine.cache.iterdir()
    remembered = json.loads(file.read_bytes())
    file.write_text(json.dumps({**remembered, "key": "another", "libc": "static"}), encoding="utf-8")
    run("docker", "run", *SHARE, "img")
    assert agent.called("POST", "/v1/leases$")[1]["anchor"]["libc"] == "glibc-2.36"


def test_no_place_to_remember(engine: FakeEngine, run: Any) -> None:
    """Without a home nothing is remembered, and nothing fails."""
    for home in ("", "/proc/nothing"):
        assert run("docker", "run", *SHARE, "img", env={"HOME": home}).returncode == 0


@pytest.mark.parametrize(
    ("files", "libc"),
    [
        (
            {"bin/prog": program("/lib/ld-musl-x86_64.so.1"), "lib/ld-musl-x86_64.so.1": musl("1.2.5")},
            "musl-1.2.5",
        ),
        ({"bin/prog": program(None)}, "static"),
        ({"lib/x86_64-linux-gnu/libc.so.6": glibc(12)}, "glibc-2.12"),
        ({"bin/prog": b"nothing known"}, "unknown"),
    ],
)
def test_libc_of_the_image(
    agent: Any, engine: FakeEngine, run: Any, files: dict[str, bytes], libc: str
) -> None:
    """The agent is told which C library the container's program has."""
    for path, content in files.items():
        engine.write(path, content)
    assert run("docker", "run", *SHARE, "img").returncode == 0
    assert agent.called("POST", "/v1/leases$")[0]["anchor"]["libc"] == libc


def test_links_stay_in_the_image(agent: Any, engine: FakeEngine, run: Any, tmp_path: Path) -> None:
    """A link is followed by its text, from the image's root: never to a file of the host's."""
    (tmp_path / "outside").write_bytes(program(None))
    (engine.root / "bin/prog").unlink()
    (engine.root / "bin/prog").symlink_to("../../../../real")
    engine.write("real", program("/lib64/ld-linux-x86-64.so.2"))
    run("docker", "run", *SHARE, "img")
    (engine.root / "bin/other").symlink_to(tmp_path / "outside")
    (engine.root / "bin/round").symlink_to("round")
    for name in ("other", "round"):
        engine.image(name, Cmd=[f"/bin/{name}"])
        run("docker", "run", *SHARE, name)
    assert [body["anchor"]["libc"] for body in agent.called("POST", "/v1/leases$")] == ["glibc-2.36"] * 3


def test_rocm_is_said(engine: FakeEngine, run: Any) -> None:
    """The image's ROCm is part of what is said."""
    engine.write("opt/rocm/.info/version", b"6.2.4-123\n")
    assert run("docker", "run", *SHARE, "img").stderr.endswith("; image glibc 2.36, ROCm 6.2.4\n")


def test_entry_points(agent: Any, engine: FakeEngine, run: Any) -> None:
    """The user's entry point and words decide which program is looked at."""
    engine.write("bin/static", program(None))
    engine.image("img", Entrypoint=["/bin/static"], Cmd=["/bin/prog"])
    for words in (["img"], ["--entrypoint=/bin/prog", "img"], ["--entrypoint", "", "img", "/bin/prog"]):
        run("docker", "run", *SHARE, *words)
    found = [body["anchor"]["libc"] for body in agent.called("POST", "/v1/leases$")]
    assert found == ["static", "glibc-2.36", "static"]


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_missing_image(engine: FakeEngine, run: Any, name: str) -> None:
    """An image that is not here is pulled before there is a lease, with the user's options for it."""
    engine.image("far", "registry")
    done = run(name, "run", *SHARE, "--platform=linux/amd64", "-q", "far")
    assert done.returncode == 0
    assert ["pull", "--platform=linux/amd64", "--quiet=true", "far"] in engine.words()
    assert (done.stdout, "pulling\n" in done.stderr) == ("started\n", True)


def test_pull_policies(agent: Any, engine: FakeEngine, run: Any) -> None:
    """always pulls what is here, never pulls nothing; a pull that fails leaves no lease."""
    engine.image("img", "registry")
    run("docker", "run", *SHARE, "--pull=always", "img")
    assert ["pull", "img"] in engine.words()
    for words in (["--pull=never", "far"], ["far"]):
        done = run("docker", "run", *SHARE, *words)
        assert done.returncode == 125
        assert done.stderr.splitlines()[-1].startswith("gpulease: EngineFailed: ")
    assert len(agent.called("POST", "/v1/leases$")) == 1


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_while_an_image_is_looked_at(
    agent: Any, engine: FakeEngine, gpulease: Any, until: Callable[..., Any], name: str
) -> None:
    """A signal during the look leaves neither the container that was made for it nor a lease."""
    engine.keep("slow", 1)
    process = gpulease.start("docker", "run", *SHARE, "img", env=engine.environment)
    until(lambda: [words for words in engine.words() if words[0] == "cp"])
    process.send_signal(getattr(signal, name))
    _, err = process.communicate()
    assert (process.returncode, agent.requests) == (125, [])
    assert err == f"gpulease: Interrupted: {name} before the container was made\n"
    assert engine.words()[-1] == ["rm", "c0ffee"]


def test_rootfs(agent: Any, engine: FakeEngine, run: Any) -> None:
    """A directory in an image's place is not looked at."""
    run("podman", "run", *SHARE, "--rootfs", "/some/dir")
    assert agent.called("POST", "/v1/leases$")[0]["anchor"]["libc"] == "unknown"
    assert len(engine.calls()) == 1
