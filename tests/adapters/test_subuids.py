"""Subordinate uids and their owners."""

from pathlib import Path

from nodeagent.adapters.subuids import Subuids


def test_a_subordinate_uid_is_charged_to_its_owner(tmp_path: Path):
    """A uid in someone's subordinate range counts for that user, by name or by number."""
    (tmp_path / "passwd").write_text("ann:x:1000:1000::/home/ann:/bin/sh\n")
    (tmp_path / "subuid").write_text("# ranges\nann:100000:65536\n1001:200000:10\ngarbled\n")
    subuids = Subuids(tmp_path / "subuid", tmp_path / "passwd")
    assert [subuids.owner(uid) for uid in (1000, 100000, 165535, 165536, 200009)] == [
        1000,
        1000,
        1000,
        165536,
        1001,
    ]


def test_missing_files_mean_that_everyone_is_their_own(tmp_path: Path):
    """Without /etc/subuid every uid is charged to itself."""
    assert Subuids(tmp_path / "none", tmp_path / "none").owner(4242) == 4242
