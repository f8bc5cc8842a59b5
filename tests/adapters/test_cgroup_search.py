"""The search for leases' cgroups outside the instance's own subtree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.cgroup_search import all_paths

NOBODY = 65534


@pytest.mark.cgroup2
@pytest.mark.root
def test_nested_leases_are_found_wherever_they_lie(tree: CgroupTree):
    """Below a lease, as deep as they are; not those of the subtree itself, nor a user's look-alike."""
    outer = tree.create(7)
    deep = tree.mount / outer.path[1:] / "job/step"
    deep.mkdir(parents=True)
    nested = tree.create(8, f"{outer.path}/job/step")
    look_alike = tree.create(9, f"{outer.path}/job")
    os.chown(tree.mount / look_alike.path[1:], NOBODY, NOBODY)
    assert tree.nested() == {8: nested}


def test_the_search_for_cgroups_is_bounded(tmp_path: Path):
    """Nearest to the root first, and no further than it may."""
    for path in ("a/deep/deeper", "b"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path)
    assert list(all_paths(tmp_path)) == ["/a", "/b", "/a/deep", "/a/deep/deeper"]
    assert list(all_paths(tmp_path, most=3)) == ["/a", "/b", "/a/deep"]
