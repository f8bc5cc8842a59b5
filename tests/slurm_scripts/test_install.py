"""`make install-slurm`: the scripts where slurm.conf names them, and nobody's but root's."""

from __future__ import annotations

import re
import stat
import subprocess
from pathlib import Path

import pytest

from .conftest import ROOT, SCRIPTS

INSTALLED = "usr/libexec/nodeagent/slurm"


@pytest.mark.root
def test_the_scripts_are_installed_as_roots(tmp_path: Path) -> None:
    """Everything that a script reads is beside it, root's, and writable by nobody else; twice is as once."""
    for _ in range(2):
        subprocess.run(["make", "-s", "install-slurm", f"DESTDIR={tmp_path}"], cwd=ROOT, check=True)
    there = tmp_path / INSTALLED
    assert {path.name for path in there.iterdir()} >= {*SCRIPTS, "prolog.conf.example"}
    for path in (there, *there.iterdir()):
        status = path.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o022) == (0, 0, 0)
    programs = {path.name for path in there.iterdir() if stat.S_IMODE(path.stat().st_mode) & 0o111}
    assert programs >= {"prolog", "epilog", "task-prolog", "await-agent"}
    assert not (tmp_path / "etc/nodeagent").exists()  # a node without the agent stays one
    for name in SCRIPTS[:4]:
        assert f"here=/{INSTALLED}\n" in (there / name).read_text()


def test_the_example_is_of_the_defaults() -> None:
    """The example of the settings sets each key to what it is anyway, as documented."""
    example = dict(
        re.findall(r"^(\w+)=(\S+)$", (ROOT / "client/slurm/prolog.conf.example").read_text(), re.M)
    )
    script = (ROOT / "client/slurm/agent.sh").read_text()
    defaults = dict(re.findall(r"^    (\w+)=(\S+)$", script.split("\n}\n")[0], re.M))
    page = (ROOT / "docs/slurm.md").read_text().split("## Settings of the scripts")[1].split("\n## ")[0]
    documented = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", page, re.M))
    assert example == {key: value for key, value in defaults.items() if key != "settings"} == documented
