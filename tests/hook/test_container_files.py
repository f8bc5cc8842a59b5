"""The hook's files as a container has them: at fixed paths, for programs of any uid, for nobody outside."""

from __future__ import annotations

import stat
import subprocess

import pytest

from nodeagent.adapters.hook_format import HookDevice
from nodeagent.domain.container import LIBRARY, LIMITS, PRELOAD, USAGE
from nodeagent.domain.cuset import CuSet

from .conftest import LEASE, MIB, Node

USER = 4711
ONE = HookDevice(0x1000, 128, 10 * MIB, 0, 1, CuSet())
MOUNT = 'mkdir -p "${2%/*}" && touch "$2" && mount --bind "$1" "$2"'


@pytest.fixture
def contained(node: Node) -> Node:
    """A node whose lease 7 is a container's, and whose mounts are as in that."""
    node.devices = [ONE]
    limits = node.files.prepare(LEASE, USER, node.devices, strict=True, contained=True)
    node.files.verify(LEASE, USER, node.devices, strict=True, contained=True)
    preload = node.files.preload_path(LEASE)
    for source, target in (
        (limits, LIMITS),
        (node.usage, USAGE),
        (node.library, LIBRARY),
        (preload, PRELOAD),
    ):
        subprocess.run(node.command("sh", "-ec", MOUNT, "sh", str(source), target), check=True)
    return node


@pytest.mark.parametrize("user", [0, USER, 65534])
def test_programs_of_any_uid_are_counted_and_held(contained: Node, user: int) -> None:
    """With nothing in their environment, in a cgroup namespace that shows them the root."""
    program = contained.start("unshare", "--cgroup", "env", "-i", preload=False, user=None)
    other = contained.start("env", "-i", preload=False, user=user)
    assert program("alloc(6 << 20)") == 1
    assert contained.charged() == 6 * MIB
    assert other("alloc(6 << 20)") == "ENOMEM"
    assert other("alloc(3 << 20)") == 1
    assert contained.charged() == 9 * MIB


def test_nobody_outside_can_write_a_containers_usage(contained: Node) -> None:
    """Every uid may write the file, so no uid may go where it lies."""
    usage = contained.usage
    assert stat.S_IMODE(usage.stat().st_mode) == 0o666
    assert stat.S_IMODE(usage.parent.stat().st_mode) == 0o700
    tried = subprocess.run(
        ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "tee", str(usage)],
        input=b"x",
        capture_output=True,
        check=False,
    )
    assert b"Permission denied" in tried.stderr


def test_what_a_container_did_to_its_usage_is_put_right(contained: Node) -> None:
    """Its owner, its mode and its size; what is charged in it stays."""
    program = contained.start("env", "-i", preload=False, user=USER)
    assert program("alloc(6 << 20)") == 1
    contained.usage.chmod(0o600)
    contained.files.prepare(LEASE, USER, contained.devices, strict=True, contained=True)
    contained.files.verify(LEASE, USER, contained.devices, strict=True, contained=True)
    assert stat.S_IMODE(contained.usage.stat().st_mode) == 0o666
    assert contained.charged() == 6 * MIB


def test_a_containers_files_go_with_its_lease(contained: Node) -> None:
    """All three, and its user's small file system is free for others again."""
    paths = [contained.usage, contained.files.limits_path(LEASE), contained.files.preload_path(LEASE)]
    space = contained.usage.parent.parent
    subprocess.run(contained.command("umount", USAGE), check=True)
    contained.files.remove(LEASE)
    assert not [path for path in paths if path.exists()]
    contained.files.prepare(9, USER + 1, [ONE], strict=True)
    assert contained.files.usage_path(9).parent == space
    contained.files.remove(9)
