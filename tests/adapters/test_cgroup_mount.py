"""Where cgroup2 is mounted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.adapters.cgroup_mount import find_mount


def line(point: str, kind: str, root: str = "/") -> str:
    return f"41 31 0:38 {root} {point} rw,relatime shared:9 - {kind} {kind} rw"


@pytest.fixture
def mountinfo(tmp_path: Path) -> Callable[[str], Path]:
    """Write a mountinfo file; its path."""

    def write(text: str) -> Path:
        file = tmp_path / "mountinfo"
        file.write_text(f"{text}\n", encoding="utf-8")
        return file

    return write


PURE = line("/sys/fs/cgroup", "cgroup2")
HYBRID = "\n".join(
    [
        line("/sys/fs/cgroup", "tmpfs"),
        line("/sys/fs/cgroup/cpu", "cgroup"),
        line("/sys/fs/cgroup/unified", "cgroup2"),
    ]
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PURE, "/sys/fs/cgroup"),
        (HYBRID, "/sys/fs/cgroup/unified"),
        (f"{line('/mnt/other', 'cgroup2')}\n{HYBRID}", "/sys/fs/cgroup/unified"),
        (f"{line('/mnt/other', 'cgroup2')}\n{PURE}", "/sys/fs/cgroup"),
        (line("/mnt/with\\040blank\\134and\\011tab", "cgroup2"), "/mnt/with blank\\and\ttab"),
        (line("/mnt/c", "cgroup2"), "/mnt/c"),
    ],
)
def test_any_cgroup2_mount_counts_and_the_usual_place_comes_first(mountinfo, text: str, expected: str):
    """Pure, hybrid and hand-made mounts are found, names with escapes included."""
    assert find_mount(mountinfo(text)) == Path(expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        line("/sys/fs/cgroup/cpu", "cgroup"),
        line("/sys/fs/cgroup", "cgroup2", root="/docker/4f"),
        f"{PURE}\n{line('/sys/fs/cgroup', 'tmpfs')}",
    ],
    ids=["empty", "garbled", "version 1 only", "subtree only", "mounted over"],
)
def test_what_is_no_usable_cgroup2_mount_does_not_count(mountinfo, text: str):
    """None where paths in /proc would not be paths in the mount."""
    assert find_mount(mountinfo(text)) is None


def test_a_name_that_is_not_utf8_survives(mountinfo):
    """A mount point is bytes to the kernel, and stays the same bytes."""
    assert bytes(find_mount(mountinfo(line("/mnt/\\303\\050x", "cgroup2"))) or "") == b"/mnt/\xc3(x"
