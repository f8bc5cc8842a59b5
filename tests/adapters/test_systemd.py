"""Slices by way of systemctl: found only where systemd manages the cgroups, and its errors told."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.adapters.systemd import Systemd, find_systemd
from nodeagent.domain.errors import OutsideFault


def fake(tmp_path: Path, script: str) -> Systemd:
    program = tmp_path / "systemctl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Systemd(str(program))


def test_a_slice_is_started_and_stopped_by_name(tmp_path: Path) -> None:
    """One call each, that asks nobody for a password and takes no name for an option."""
    systemd = fake(tmp_path, f'echo "$@" >> {tmp_path}/said')
    systemd.start("gpulease-7.slice")
    systemd.stop("gpulease-7.slice")
    assert (tmp_path / "said").read_text().splitlines() == [
        "--no-ask-password --quiet start -- gpulease-7.slice",
        "--no-ask-password --quiet stop -- gpulease-7.slice",
    ]


def test_what_systemd_says_is_told(tmp_path: Path) -> None:
    """The unit is named, and why it was refused."""
    with pytest.raises(OutsideFault, match=r"gpulease-7\.slice.*Unit is masked"):
        fake(tmp_path, "echo Unit is masked. >&2; exit 1").start("gpulease-7.slice")


def test_without_systemd_in_charge_there_is_none(tmp_path: Path) -> None:
    """Not PID 1, no answer, or another mount than the one it manages."""
    assert find_systemd(Path("/sys/fs/cgroup"), booted=tmp_path / "none", private=tmp_path) is None
    assert find_systemd(Path("/sys/fs/cgroup"), booted=tmp_path, private=tmp_path / "none") is None
    assert find_systemd(tmp_path, booted=tmp_path, private=tmp_path) is None


def test_the_slices_that_run_are_listed_by_name(tmp_path: Path) -> None:
    """Whatever columns follow; those that are loaded but do not run are not asked for."""
    systemd = fake(
        tmp_path, f'echo "$@" > {tmp_path}/said; echo "gpulease-7.slice loaded active active A slice"'
    )
    assert systemd.slices("gpulease-*.slice") == {"gpulease-7.slice"}
    assert (tmp_path / "said").read_text().split()[2:] == [
        *("--type=slice", "--state=active", "--plain", "--no-legend", "--no-pager"),
        *("list-units", "--", "gpulease-*.slice"),
    ]
