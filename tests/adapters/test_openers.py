"""Who has a device node open: real nodes, and processes that hold them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.adapters.acl import DeviceNode
from nodeagent.adapters.openers import users_of


def test_who_has_the_node_open(node: DeviceNode) -> None:
    """By descriptor; a process that has closed it is none."""
    with subprocess.Popen(["sleep", "600"], stdin=node.path.open("rb")) as child:
        assert child.pid in users_of(node)
        child.kill()
    assert child.pid not in users_of(node)


MAPPED = """
import mmap, os, sys
node = os.open(sys.argv[1], os.O_RDWR)
kept = mmap.mmap(node, 4096, mmap.MAP_PRIVATE)
os.closerange(3, 64)
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("gone", [False, True])
def test_a_mapping_alone_counts_and_a_file_of_the_name_does_not(
    node: DeviceNode, tmp_path: Path, gone: bool
) -> None:
    """Mapped and closed the node is in use, removed since or not; a file that is called so is not."""
    zero = DeviceNode(tmp_path / "kfd", 1, 5)
    os.mknod(zero.path, 0o20666, os.makedev(1, 5))
    alike = tmp_path / "elsewhere" / "kfd"
    alike.parent.mkdir()
    alike.write_bytes(bytes(4096))
    with _mapping(zero.path) as child, _mapping(alike) as other:
        if gone:
            zero.path.unlink()
        users = users_of(zero)
        child.kill()
        other.kill()
    assert child.pid in users
    assert other.pid not in users


def _mapping(path: Path) -> subprocess.Popen[str]:
    """A process that has *path* mapped, and no descriptor of it."""
    words = [sys.executable, "-c", MAPPED, str(path)]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "mapped\n"
    return child
