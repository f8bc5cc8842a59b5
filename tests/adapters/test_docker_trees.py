"""The node's trees that no container has bound into it."""

from __future__ import annotations

from pathlib import Path

from nodeagent.adapters.docker_trees import trees

MOUNTINFO = b"""\
22 1 0:5 / /dev rw - devtmpfs udev rw
23 1 8:1 / / rw - ext4 /dev/sda1 rw
24 23 0:5 / /srv/chroot\\040old/dev rw - devtmpfs udev rw
25 23 0:21 / /srv/chroot\\040old/sys rw - sysfs sysfs rw
26 23 0:40 / /srv/tmp rw - tmpfs tmpfs rw
"""


def test_devices_are_closed_wherever_they_are_mounted(tmp_path: Path) -> None:
    """A chroot's /dev is the node's; what holds it cannot be bound either."""
    file = tmp_path / "mountinfo"
    file.write_bytes(MOUNTINFO)
    node = trees(mountinfo=file)
    assert node.why_not("/srv/chroot old/dev", read_only=True)
    assert node.why_not("/srv/chroot old/sys/class", read_only=True)
    assert node.why_not("/srv", read_only=True)
    assert node.why_not("/srv/tmp", read_only=False) is None


def test_links_are_followed_on_the_node(tmp_path: Path) -> None:
    """Also through a directory that is a link, and for what does not exist yet."""
    (tmp_path / "link").symlink_to("/dev")
    node = trees()
    assert node.why_not(str(tmp_path), read_only=False) is None
    assert node.why_not(f"{tmp_path}/link", read_only=False)
    assert node.why_not(f"{tmp_path}/link/none/x", read_only=False)
    (tmp_path / "link").unlink()
    assert node.why_not(f"{tmp_path}/none", read_only=False) is None


def test_a_site_keeps_more_trees_of_its_own(tmp_path: Path) -> None:
    """docker's data may lie elsewhere: it is bound read-only at most."""
    node = trees(kept=("/srv/docker",))
    assert node.why_not("/srv/docker/volumes", read_only=False)
    assert node.why_not("/srv/docker/volumes", read_only=True) is None


def test_a_site_opens_a_path_that_is_closed(tmp_path: Path) -> None:
    """It alone, and not what a link of its name leads to."""
    node = trees(opened=("/run/docker.sock", f"{tmp_path}/link"))
    assert node.why_not("/run/docker.sock", read_only=False) is None
    assert node.why_not("/run", read_only=True)
    (tmp_path / "link").symlink_to("/dev")
    assert node.why_not(f"{tmp_path}/link", read_only=False)
