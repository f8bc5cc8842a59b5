"""`nodeagent slurm`, as an administrator types it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nodeagent.cli import slurming
from nodeagent.cli.main import cli

FILES = ("gres.conf", "slurm.conf", "cgroup.conf")


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["slurm", *words])


@pytest.fixture
def site(tmp_path: Path) -> list[str]:
    """Options for a site whose files are as printed for an MI300X node of this host's name."""
    etc = tmp_path / "etc"
    etc.mkdir()
    for name in FILES:
        text = run("gres-conf", "--simulate", "mi300x-spx", "--only", name).output
        (etc / name).write_text(text.replace("#   NodeName", "NodeName"))
        (etc / name).chmod(0o644)
    config = tmp_path / "nodeagent.toml"
    config.write_text(f'[slurm]\ngres_conf = "{etc / "gres.conf"}"\nrequest_from = "extra"\n')
    config.chmod(0o644)
    none = str(tmp_path / "none.sock")
    return ["--config", str(config), "--simulate", "mi300x-spx", "--socket", none]


def test_all_three_files_are_printed() -> None:
    """Each with its name above, the node's name as the host's is."""
    lines = run("gres-conf", "--simulate", "mi210").output.splitlines()
    assert [line for line in lines if line.startswith("# ---")] == [f"# --- {name}" for name in FILES]
    node = socket.gethostname().partition(".")[0]
    assert f"NodeName={node} AutoDetect=off" in lines


def test_one_file_can_be_written_as_it_is_printed() -> None:
    """--only is for a redirection; --node names another node."""
    assert run("gres-conf", "--simulate", "mi210", "--only", "cgroup.conf").output == "ConstrainDevices=yes\n"
    assert "NodeName=x7 Name=gpu" in run("gres-conf", "--simulate", "mi210", "--node", "x7").output


def test_the_check_of_a_site_that_has_what_is_printed(site: list[str]) -> None:
    """One line each; only what is not installed or running here fails, and the exit code is the worst."""
    done = run("check", *site)
    failed = {line.split(":")[0] for line in done.output.splitlines() if not line.startswith("OK ")}
    assert failed <= {"FAIL Prolog", "FAIL Epilog", "FAIL TaskProlog", "FAIL agent"}
    assert "FAIL agent" in failed
    assert done.exit_code == 2
    assert "OK   GPU 7: /dev/dri/renderD184 is" in done.output


def test_a_wrong_line_is_one_finding(site: list[str], tmp_path: Path) -> None:
    """What cannot be read is named with its line, and nothing is guessed from the rest."""
    (tmp_path / "etc/gres.conf").write_text("Name=gpu File=/dev/dri/renderD[9-1]\n")
    done = run("check", *site)
    assert done.exit_code == 2
    assert done.output.count("\n") == 1
    assert "gres.conf:1: File" in done.output


@pytest.mark.root
def test_settings_that_the_scripts_do_not_believe_are_told(
    site: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prolog.conf that others can write to fails the check, and what it says does not count."""
    settings = tmp_path / "prolog.conf"
    settings.write_text("no_such_key=1\n")
    settings.chmod(0o666)
    monkeypatch.setattr(slurming, "PROLOG_CONF", settings)
    shown = run("check", *site).output
    assert f"{settings} must be root's own file" in shown
    assert "no_such_key" not in shown
    settings.chmod(0o644)
    assert "no_such_key" in run("check", *site).output


def test_a_host_without_slurm_says_so() -> None:
    """No file is a failure of this command, which is asked where Slurm should be."""
    done = run("check", "--simulate", "mi210")
    assert done.exit_code == 2
    assert "gres_conf" in done.output
