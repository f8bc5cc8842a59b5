"""An agent whose disk is full or fails: it says so, releases or says that it cannot, and recovers."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import MACHINE, RunningNode, running_node

pytestmark = [
    pytest.mark.unattacked,  # what these leases hold is not the question
    pytest.mark.skipif("NODEAGENT_SOCKET" in os.environ, reason="the agent is not ours to stop"),
]
SOURCE = Path(__file__).with_name("failing_disk.c")


def ask(node: RunningNode):
    return node.http("POST", "/v1/leases", {"slices": [{"cu_percent": 10}], "anchor": {"kind": "ttl"}})


def a_lease(node: RunningNode) -> dict:
    answer = ask(node)
    assert answer.status == 201, answer.body
    return answer.body


def release(node: RunningNode, lease: dict):
    return node.http("DELETE", f"/v1/leases/{lease['id']}?wait=5")


@contextlib.contextmanager
def own_node() -> Iterator[RunningNode]:
    with running_node(MACHINE) as node:
        node.attacked = False
        yield node


@pytest.fixture
def small() -> Iterator[RunningNode]:
    """A node whose state directory is a file system of 64 MiB."""
    with own_node() as node:
        node.stop()
        options = ["-t", "tmpfs", "-o", "size=64m,mode=0700"]
        subprocess.run(["mount", *options, "tmpfs", node.state_dir], check=True)
        try:
            node.start()
            yield node
        finally:
            node.stop()
            subprocess.run(["umount", node.state_dir], check=True)


def fill(directory: Path) -> Path:
    """Take every last byte."""
    hog = directory / "hog"
    with hog.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * (1 << 16))
    with hog.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 512)
    return hog


@pytest.mark.root
def test_a_full_disk_stops_grants_and_no_release(small: RunningNode) -> None:
    """Releases go through at once, grants are 503 with the reason; with the space they come back."""
    leases = [a_lease(small) for _ in range(4)]
    hog = fill(small.state_dir)
    first = release(small, leases[0])
    assert first.body.get("state") == "released", first
    refused = ask(small)
    assert refused.status == 503 and "releases work" in str(refused.body)
    assert small.http("GET", "/readyz").status == 503
    for lease in leases[1:3]:
        assert release(small, lease).body["state"] == "released"
    assert small.lease(leases[3]["id"])["state"] == "active"
    hog.unlink()
    granted = small.until(lambda: (answer := ask(small)).status == 201 and answer.body)
    assert granted["id"] > leases[3]["id"]


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[tuple[RunningNode, Path]]:
    """A node, and the file that makes its disk fail: see failing_disk.c."""
    with own_node() as node:
        node.stop()
        start_failing(node, tmp_path, ready=True)
        yield node, tmp_path / "failing"


def start_failing(node: RunningNode, directory: Path, *, ready: bool, of: str = "") -> None:
    """Start the agent with what makes its disk fail while the file "failing" is in *directory*.

    *of*: how the names of the files in the state directory begin that are on that disk.
    """
    library = directory / "failing_disk.so"
    build = ["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*build, "-o", library, SOURCE, "-ldl"], check=True)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LD_PRELOAD", str(library))
        environment.setenv("FAILING_DISK", str(directory / "failing"))
        environment.setenv("FAILING_STATE", f"{node.state_dir}/{of}")
        node.start(ready=ready)


@pytest.mark.root
@pytest.mark.parametrize("what", ["writes", "syncs"])
def test_a_disk_that_fails_loses_nothing_that_was_answered(
    failing: tuple[RunningNode, Path], what: str
) -> None:
    """While it fails, grants and releases are 503 with the reason, and not done; later both work again."""
    node, control = failing
    ended, kept = a_lease(node), a_lease(node)
    control.write_text(what)
    refused = ask(node)
    assert refused.status == 503 and "disk failed" in str(refused.body), refused.body
    unreleased = release(node, ended)
    assert unreleased.status == 503 and "disk failed" in str(unreleased.body), unreleased.body
    assert [node.lease(lease["id"])["state"] for lease in (ended, kept)] == ["active", "active"]
    control.unlink()
    granted = node.until(lambda: (answer := ask(node)).status == 201 and answer.body)
    assert node.until(
        lambda: (answer := release(node, ended)).status == 200 and answer.body["state"] == "released"
    )
    node.kill()
    node.start()
    assert node.lease(ended["id"])["state"] == "released"
    held = [node.lease(lease["id"]) for lease in (kept, granted)]
    assert [lease["state"] for lease in held] == ["active", "active"]
    assert held[0]["slices"][0]["cus"] == kept["slices"][0]["cus"]


@pytest.mark.root
@pytest.mark.parametrize("what", ["writes", "syncs"])
def test_an_agent_that_starts_on_a_disk_that_fails_goes_on_when_that_does(
    failing: tuple[RunningNode, Path], what: str
) -> None:
    """It answers, ends no lease for devices that it could not look for, and needs no other start."""
    node, control = failing
    kept, ended = a_lease(node), a_lease(node)
    node.kill()
    control.write_text(what)
    start_failing(node, control.parent, ready=False, of="ledger")  # its simulated machine lies there, too
    assert ask(node).status == release(node, ended).status == 503
    control.unlink()
    assert node.until(lambda: ask(node).status == 201)
    assert node.lease(kept["id"])["state"] == "active"
    assert release(node, ended).body["state"] == "released"
    assert node.http("GET", "/readyz").status == 200
