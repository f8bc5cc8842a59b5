"""POSIX ACLs of device nodes: the kernel itself reads back and enforces what is written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from nodeagent.adapters.acl import READ_WRITE, Acl, DeviceNode, decode, encode
from nodeagent.domain.errors import OutsideFault

CLOSED = Acl(READ_WRITE, 0, 0)


def test_the_kernels_own_bytes() -> None:
    """Version, then tag, permissions and id, sorted, little endian (linux/posix_acl_xattr.h)."""
    acl = Acl(6, 0, 0, 6, {1001: 6, 1000: 4})
    assert encode(acl).hex() == (
        "02000000" "01000600ffffffff" "02000400e8030000" "02000600e9030000"
        "04000000ffffffff" "10000600ffffffff" "20000000ffffffff"
    )  # fmt: skip
    assert decode(encode(acl)) == acl


@pytest.mark.parametrize("value", [b"", b"\1\0\0\0", b"\2\0\0\0\1"])
def test_what_is_no_acl_is_refused(value: bytes) -> None:
    """Another version, or cut entries."""
    with pytest.raises(ValueError, match="version 2"):
        decode(value)


def test_a_mode_is_an_acl_and_back(node: DeviceNode) -> None:
    """Without named entries the kernel keeps the mode alone."""
    assert node.read() == Acl(6, 6, 6)
    node.write(CLOSED)
    assert node.path.stat().st_mode & 0o777 == 0o600
    assert node.read() == CLOSED


def test_the_kernel_reads_back_what_was_written(node: DeviceNode) -> None:
    """Named users and groups stay, and a mask cuts what an entry grants."""
    acl = Acl(6, 0, 0, 4, {1000: 6}, {5: 4})
    node.write(acl)
    assert node.read() == acl
    assert not acl.grants(1000)


def test_a_link_is_not_followed(node: DeviceNode, tmp_path: Path) -> None:
    """A link in the node's place is a fault, and what it leads to is left alone."""
    (tmp_path / "kfd").symlink_to(node.path)
    with pytest.raises(OutsideFault):
        DeviceNode(tmp_path / "kfd", 1, 3).write(CLOSED)
    assert node.read() == Acl(6, 6, 6)


def test_another_device_is_not_touched(node: DeviceNode) -> None:
    """Neither another device of the name nor a file."""
    with pytest.raises(OutsideFault, match="character device"):
        DeviceNode(node.path, 226, 128).write(CLOSED)


def test_a_missing_node_is_named(tmp_path: Path) -> None:
    """The fault has its path."""
    with pytest.raises(OutsideFault, match=errno.errorcode[errno.ENOENT]):
        DeviceNode(tmp_path / "kfd", 1, 3).read()
