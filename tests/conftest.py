"""What every test may use, and the honest skips: each says what this machine lacks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# What a change is judged by must not be luck: the same examples each time. New ones belong to make test-long.
settings.register_profile(
    "default",
    derandomize=True,
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("NODEAGENT_HYPOTHESIS", "default"))


def cgroup2_mount() -> Path | None:
    """The first cgroup2 mount that this user can make a directory in, hybrid ones included."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        mount = Path(left.split()[4])
        if right.split()[0] == "cgroup2" and os.access(mount, os.W_OK):
            return mount
    return None


def user_namespaces() -> bool:
    """Whether a process here may make a user namespace."""
    made = subprocess.run(["unshare", "--user", "true"], stderr=subprocess.DEVNULL, check=False)
    return made.returncode == 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine cannot run; slow tests run only when asked for by mark."""
    unmet = {}
    if os.geteuid() != 0:
        unmet["root"] = "needs uid 0 for real second users"
    if cgroup2_mount() is None:
        unmet["cgroup2"] = "needs a writable cgroup2 mount"
    if not user_namespaces():
        unmet["userns"] = "needs user namespaces, which a chroot and most containers forbid"
    if "slow" not in (config.option.markexpr or ""):
        unmet["slow"] = "runs in make test-long"
    for item in items:
        for mark, reason in unmet.items():
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail what would be skipped where NODEAGENT_REQUIRE names its marker: there, the tier has to run."""
    report = yield
    required = os.environ.get("NODEAGENT_REQUIRE", "").split()
    unasked = item.get_closest_marker("slow") and "slow" not in (item.config.option.markexpr or "")
    if report.skipped and not unasked and any(item.get_closest_marker(name) for name in required):
        report.outcome = "failed"
    return report
