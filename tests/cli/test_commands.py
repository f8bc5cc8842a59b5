"""`nodeagent`'s verbs that need no running agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from nodeagent.adapters import machine
from nodeagent.adapters.sole import sole
from nodeagent.cli.main import cli
from nodeagent.domain.doctor import CHECKS
from nodeagent.domain.errors import OutsideFault
from nodeagent.ledger.migrate import NEWEST


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """The command as a user types it."""
    return subprocess.run(
        [sys.executable, "-m", "nodeagent.cli.main", *words], text=True, capture_output=True, check=False
    )


def test_health_without_an_agent_is_2(tmp_path: Path) -> None:
    """`health` says in one line that nobody answers, and exits 2."""
    done = run("health", "--socket", str(tmp_path / "none"))
    assert done.returncode == 2
    assert done.stdout.startswith("agent: not answering") and done.stdout.count("\n") == 1


def test_a_fault_is_one_line(tmp_path: Path) -> None:
    """A command that cannot reach the agent says so in one line, without a traceback."""
    done = run("drain", "--all", "--socket", str(tmp_path / "none"))
    assert done.returncode == 2
    assert done.stderr.startswith("nodeagent: ") and done.stderr.count("\n") == 1


def test_migrate_makes_a_ledger_and_then_has_nothing_to_do(tmp_path: Path) -> None:
    """`migrate` brings a new state directory to the newest schema; again it changes nothing."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    first, again = (run("migrate", "--state-dir", str(state)) for _ in range(2))
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    assert f"the schema is {NEWEST} now" in first.stdout and "nothing to do" in again.stdout


def test_backup_never_overwrites(tmp_path: Path) -> None:
    """`backup` writes a new file of mode 0600 and refuses one that exists."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    run("migrate", "--state-dir", str(state))
    target = tmp_path / "copy"
    assert run("backup", "--state-dir", str(state), str(target)).returncode == 0
    assert target.stat().st_mode & 0o777 == 0o600
    again = run("backup", "--state-dir", str(state), str(target))
    assert again.returncode == 2 and str(target) in again.stderr


def test_the_shipped_machines_are_listed() -> None:
    """`simulate list` names every machine file with what it is."""
    lines = CliRunner().invoke(cli, ["simulate", "list"]).output.splitlines()
    assert [line.split()[0] for line in lines] == list(machine.names())
    assert all(len(line.split()) > 2 for line in lines)


def test_a_copied_tree_is_captured(tmp_path: Path) -> None:
    """`simulate capture --root` writes a machine file that has what the tree has."""
    root, output = tmp_path / "root", tmp_path / "mine.json"
    machine.materialise(machine.find("vega10"), root)
    done = run("simulate", "capture", "--root", str(root), "-o", str(output))
    assert done.returncode == 0, done.stderr
    captured = machine.load(output)
    properties = [path for path in captured.captured.files if path.endswith("nodes/1/properties")]
    assert properties
    assert json.loads(output.read_text(encoding="utf-8"))["format"] == 1


def test_a_tree_without_gpus_is_captured_with_a_word(tmp_path: Path) -> None:
    """Capturing a tree without a KFD topology is an error that says what was looked for."""
    (tmp_path / "empty").mkdir()
    done = run("simulate", "capture", "--root", str(tmp_path / "empty"), "-o", str(tmp_path / "x.json"))
    assert done.returncode == 2
    assert "topology" in done.stderr
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize("command", ["journal", "ipc"])
def test_a_lease_goes_by_its_number(command: str) -> None:
    """Another name of a lease is refused with where the number is to be found."""
    done = CliRunner().invoke(cli, [command, "slurm:7"])
    assert done.exit_code == 2
    assert "'slurm:7' is not a lease's number; `gpulease status`" in done.output


def test_serve_names_an_unknown_machine(tmp_path: Path) -> None:
    """`serve --simulate` with a name that is none lists the names there are."""
    done = run(
        "serve", "--simulate", "mi9000", "--socket", str(tmp_path / "s"), "--state-dir", str(tmp_path / "d")
    )
    assert done.returncode == 2
    assert "mi9000" in done.stderr and "mi300x-spx" in done.stderr


def doctor(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`doctor` on this machine, for an agent that does not run."""
    return run("doctor", "--socket", str(tmp_path / "none"), "--state-dir", str(tmp_path / "state"), *options)


def test_doctor_says_what_to_fix(tmp_path: Path) -> None:
    """`doctor` gives one line a check, with the fix and a public report where something is wrong."""
    done = doctor(tmp_path)
    assert done.returncode == 2, done.stderr
    lines = {line.split()[1].rstrip(":"): line for line in done.stdout.splitlines()}
    folded = sum(int(name) - 1 for name in lines if name.isdigit())  # UNSEEN 12 checks: there is no card
    assert len(lines) == done.stdout.count("\n") == len(CHECKS) - folded
    assert lines["agent"].startswith("FAIL   agent: not answering")
    (agent,) = (one for one in CHECKS if one.name == "agent")
    assert lines["agent"].endswith(f"[fix: {agent.fix}; see {agent.issue}]")
    assert not [line for line in lines.values() if line.startswith("OK") and "[fix:" in line]


def test_doctor_for_programs(tmp_path: Path) -> None:
    """`doctor --json` is a list of findings with the same fields each; --quiet leaves out what is well."""
    done = doctor(tmp_path, "--json", "--quiet")
    findings = json.loads(done.stdout)
    assert done.returncode == 2 and findings
    assert {tuple(one) for one in findings} == {("name", "area", "level", "text", "fix", "issue")}
    assert {one["level"] for one in findings} <= {"UNSEEN", "WARN", "FAIL"}


def test_a_second_agent_on_a_state_directory_stays_out(tmp_path: Path) -> None:
    """Two agents on one ledger would end each other's leases: the second names the first and ends."""
    with sole(tmp_path):
        words = ("--simulate", "mi210", "--socket", str(tmp_path / "s"), "--state-dir", str(tmp_path))
        with pytest.raises(OutsideFault, match=f"process {os.getpid()}"), sole(tmp_path, patience=0):
            raise AssertionError("there were two")
        done = run("serve", *words)
    assert done.returncode == 2
    assert str(tmp_path / "lock") in done.stderr and "--state-dir" in done.stderr
    with sole(tmp_path, patience=0):
        """Whoever had it is gone."""


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["serve", "--config", "{}/none"], "--config"),
        (["config", "check", "--config", "{}"], "--config"),
        (["config", "show", "--config", "{}/none"], "--config"),
        (["drain", "--all", "--until", "soon", "--socket", "{}/s"], "1h30m"),
        (["serve", "--simulate", "mi210", "--state-dir", "{}/file/x"], "state.directory"),
        (["migrate", "--state-dir", "{}/none"], "--state-dir"),
        (["backup", "{}/copy", "--state-dir", "{}/none"], "--state-dir"),
        (["simulate", "capture", "--root", "{}", "-o", "{}/x"], "amdgpu"),
    ],
)
def test_a_wrong_word_is_named(tmp_path: Path, words: list[str], named: str) -> None:
    """What can never be right is 2, without a traceback, and names the option or setting."""
    (tmp_path / "file").touch()
    done = run(*(word.format(tmp_path) for word in words))
    assert done.returncode == 2
    assert named in done.stderr and "Traceback" not in done.stderr
