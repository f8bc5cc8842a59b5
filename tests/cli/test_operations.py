"""What an administrator types by day and by night, at an agent that lives, hangs or is dead."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpulease.errors import UsageError
from gpulease.transport import Transport
from nodeagent import __version__
from nodeagent.cli import health_check
from nodeagent.domain.errors import OutsideFault
from nodeagent.domain.health import of_node, silent
from nodeagent.wiring.state import stem

pytestmark = pytest.mark.root


@dataclass
class Served:
    """An agent on a simulated node."""

    directory: Path
    process: subprocess.Popen[bytes]

    @property
    def socket(self) -> str:
        return str(self.directory / "s")

    def run(self, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of `nodeagent` about this agent."""
        base = [sys.executable, "-m", "nodeagent.cli.main", *verb.split()]
        where = ["--socket", self.socket]
        state = (
            ["--state-dir", str(self.directory / "state")] if verb.startswith(("bypass", "report")) else []
        )
        return subprocess.run(
            [*base, *where, *state, *words], capture_output=True, text=True, check=False, timeout=60
        )

    @property
    def bypass_file(self) -> Path:
        return Path("/run/nodeagent/bypass") / stem(self.directory / "state")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One for all tests here: each leaves it as it was."""
    if os.geteuid() != 0:
        pytest.skip("only root may bypass")
    directory = Path(tempfile.mkdtemp(prefix="ops-"))
    words = ["serve", "--simulate", "vega10", "--socket", str(directory / "s"), "--state-dir"]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "nodeagent.cli.main", *words, str(directory / "state")], stderr=log
        )
    made = Served(directory, process)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                if Transport(made.socket, timeout=5).call("GET", "/readyz", None).status == 200:
                    break
            except Exception:  # not yet
                assert time.monotonic() < deadline, (directory / "log").read_text()
            time.sleep(0.1)
        yield made
    finally:
        made.bypass_file.unlink(missing_ok=True)
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(30)
        shutil.rmtree(directory, ignore_errors=True)


def test_the_health_line_says_what_is_up(served: Served) -> None:
    """Well, and as a Nagios plugin says it."""
    done = served.run("health")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1) and "agent: well" in done.stdout
    done = served.run("health", "--nagios")
    assert done.returncode == 0 and done.stdout.startswith("NODEAGENT OK - ") and "devices=2" in done.stdout


def test_a_start_is_told(served: Served) -> None:
    """With the version, and what the node is."""
    answer = Transport(served.socket, timeout=10).call("GET", "/v1/events", None)
    (told,) = (one for one in json.loads(answer.body)["events"] if one["kind"] == "started")
    assert told["data"] == {"version": __version__, "machine": "simulated: vega10"}


def test_a_drain_shows_everywhere(served: Served) -> None:
    """In the status, the health line and each device, until it is ended."""
    done = served.run("drain", "--all", "--reason", "power", "--until", "2h")
    assert done.returncode == 0 and done.stdout.count(": draining: power") == 2
    status = served.run("status").stdout
    assert "draining    the whole node since" in status and "uid 0: power" in status
    assert "node draining" in served.run("health").stdout
    told = json.loads(served.run("status", "--json").stdout)
    assert told["drains"][0]["reason"] == "power" and len(told["devices"]) == 2 and told["quarantined"] == []
    done = served.run("undrain", told["devices"][0]["device"])
    assert done.returncode == 1 and "the whole node is drained" in done.stderr
    undrained = json.loads(served.run("undrain", "--all", "--json").stdout)["devices"]
    assert [one["state"] for one in undrained] == ["healthy", "healthy"]
    assert served.run("drain").returncode == 2
    assert served.run("drain", "--all", "--until", "soon").returncode == 2


def test_a_bypass_from_its_beginning_to_its_end(served: Served) -> None:
    """The agent sees it, says so everywhere, and enforces again afterwards."""
    assert "off" in served.run("bypass status").stdout
    done = served.run("bypass on", "--until", "10m", "--reason", "3 am")
    assert (done.returncode, done.stderr) == (0, "")
    assert "the agent has seen it" in done.stdout and "by uid 0: 3 am" in done.stdout
    told = served.run("bypass status", "--json")
    assert (told.returncode, json.loads(told.stdout)["reason"], json.loads(told.stdout)["seen"]) == (
        1,
        "3 am",
        True,
    )
    assert "; " not in served.run("bypass status").stdout
    status = served.run("status").stdout
    assert "BYPASS      nothing is enforced" in status and "opened" in status
    health = served.run("health")
    assert health.returncode == 0 and "bypassed: 3 am" in health.stdout
    assert served.run("health", "--nagios").returncode == 1
    assert "enforces again" in served.run("bypass off").stdout
    assert "was off" in served.run("bypass off").stdout
    assert "BYPASS" not in served.run("status").stdout


@pytest.mark.parametrize(
    "words",
    [
        ["--until", "9d", "--reason", "x"],
        ["--until", "soon", "--reason", "x"],
        ["--until", "1h", "--reason", "a\nb"],
    ],
)
def test_a_bypass_that_can_never_be_right_is_none(served: Served, words: list[str]) -> None:
    """The field is named, and nothing is written."""
    done = served.run("bypass on", *words)
    assert done.returncode == 2 and ("until" in done.stderr or "reason" in done.stderr)
    assert not served.bypass_file.exists()


def test_only_root_bypasses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Who cannot open what is closed is told so."""
    from nodeagent.cli import bypassing
    from nodeagent.domain.errors import NotAllowed

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for act in (
        lambda: bypassing.begin(None, tmp_path, None, "1h", "x"),
        lambda: bypassing.end(None, tmp_path, None),
    ):
        with pytest.raises(NotAllowed, match="only root"):
            act()


def test_a_hung_agent_is_bypassed_all_the_same(served: Served) -> None:
    """It is not waited for longer than for one that is well."""
    children = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text().split()
    stopped = [served.process.pid, *map(int, children)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        done = served.run("bypass on", "--until", "10m", "--reason", "hung")
        assert done.returncode == 0 and "no agent answers" in done.stdout
        assert served.run("bypass status").stdout.rstrip().endswith(": hung; no agent answers")
        assert served.run("health").returncode == 2  # it is not the node's own agent that is bypassed
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        served.run("bypass off")


def test_how_the_agent_is_for_programs(served: Served) -> None:
    """`health --json` says state, text, warnings and figures, with the exit code of the line."""
    done = served.run("health", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["state"], told["warnings"]) == (0, "well", [])
    assert told["figures"] == {"ready": 1, "bypass": 0, "devices": 2, "sick": 0, "draining": 0}


def test_a_report_mixes_no_two_agents(tmp_path: Path) -> None:
    """Another agent's socket without its state directory would come with the leases of the node's own."""
    from nodeagent.cli.reporting import Sources

    with pytest.raises(UsageError, match="--state-dir"):
        Sources.of(None, tmp_path / "s", None, events=0, full=False)
    assert Sources.of(None, Path("/run/nodeagent/api.sock"), None, events=0, full=False)


def test_a_report_has_every_part_and_no_user(served: Served, tmp_path: Path) -> None:
    """One private file; an existing one is not written over, and no link followed."""
    target = tmp_path / "r.tar.gz"
    done = served.run("report", "-o", str(target))
    assert done.returncode in (0, 1) and target.stat().st_mode & 0o777 == 0o600
    with tarfile.open(target) as archive:
        names = {member.name.removeprefix("nodeagent-report/"): member for member in archive}
        assert all(member.isfile() and member.mode == 0o600 for member in names.values())
        text = {name: archive.extractfile(member).read().decode() for name, member in names.items()}
    assert set(text) == {
        "versions.txt", "config.toml", "doctor.txt", "node.json", "devices.json", "leases.json",
        "events.jsonl", "quarantine.json", "kernel.txt", "cgroups.txt", "machine.json",
    }  # fmt: skip
    assert "nodeagent 0" in text["versions.txt"] and '"ready": true' in text["node.json"]
    assert json.loads(text["events.jsonl"].splitlines()[0])["kind"]
    assert "environment" not in text["leases.json"]
    assert served.run("report", "-o", str(target)).returncode == 2
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    assert served.run("report", "-o", str(link)).returncode == 2
    assert not (tmp_path / "elsewhere").exists()
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert "others can write" in served.run("report", "-o", str(shared / "r")).stderr


def test_a_report_without_an_agent_has_what_the_disk_says(tmp_path: Path) -> None:
    """Parts that need an agent say why they are missing, and the exit code does."""
    from nodeagent.cli.reporting import Sources, write
    from nodeagent.ledger.migrate import migrate

    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    migrate(state / "ledger.sqlite3")
    sources = Sources.of(None, tmp_path / "none", state, events=10, full=False)
    path, failed = write(sources, tmp_path / "r.tar.gz")
    assert {"node.json", "devices.json"} <= failed.keys() and not {
        "leases.json",
        "events.jsonl",
    } & failed.keys()
    with tarfile.open(path) as archive:
        assert "FAILED" in archive.extractfile("nodeagent-report/node.json").read().decode()


def test_a_users_cgroup_commands_no_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever reads the report sees names that users gave, and does not have them carried out."""
    from nodeagent.cli import reporting

    mine = reporting.stem(tmp_path)
    (tmp_path / f"{mine}-\x1b[2J.slice").mkdir()
    monkeypatch.setattr(reporting, "find_mount", lambda: tmp_path)
    sources = reporting.Sources.of(None, None, tmp_path, events=0, full=True)
    assert sources.parts()["cgroups.txt"]() == f"== /{mine}-\\x1b[2J.slice"


# -- Slurm's word about the node ---------------------------------------------------------------------------


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scontrol that notes what it is told, and shows the node as the file `shown` says."""
    program = tmp_path / "scontrol"
    program.write_text(
        f'#!/bin/sh\n[ "$2" = show ] && exec cat {tmp_path}/shown\nprintf "%s\\n" "$*" >>{tmp_path}/told\n'
    )
    program.chmod(0o755)
    (tmp_path / "shown").write_text("NodeName=n0 State=IDLE ThreadsPerCore=1\n")
    monkeypatch.setattr(health_check, "SCONTROL", (str(program),))
    monkeypatch.setattr(health_check, "PATIENCE_SECONDS", 0.0)
    return tmp_path


WELL = of_node({"ready": True, "reason": None, "machine": "m", "version": "1"})


def test_a_node_is_drained_and_resumed_by_its_own_reason_alone(slurm: Path) -> None:
    """Drained once; resumed only where the reason is still ours."""
    sick = silent("x\nState=IDLE\x1b", None)
    assert health_check.follow(None, sick, "n0") == "slurm: n0 drained"
    assert (slurm / "told").read_text() == (
        "update NodeName=n0 State=DRAIN Reason=nodeagent: not answering: x?State=IDLE?\n"
    )
    (slurm / "shown").write_text("NodeName=n0 State=IDLE+DRAIN Reason=nodeagent: not answering [root@x]\n")
    assert health_check.follow(None, sick, "n0") == "slurm: n0 is drained already"
    assert health_check.follow(None, WELL, "n0") == "slurm: n0 resumed"
    assert (slurm / "told").read_text().splitlines()[-1] == "update NodeName=n0 State=RESUME"
    (slurm / "shown").write_text("NodeName=n0 State=IDLE+DRAIN Reason=fan broken [root@x]\n")
    assert health_check.follow(None, WELL, "n0") == "slurm: nothing to do"
    (slurm / "shown").write_text("NodeName=n0 State=ALLOCATED ThreadsPerCore=1\n")
    assert health_check.follow(None, WELL, "n0") == "slurm: nothing to do"


def test_an_agent_that_comes_back_drains_no_node(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while it is upgraded."""
    monkeypatch.setattr(health_check, "PATIENCE_SECONDS", 60.0)
    monkeypatch.setattr(health_check, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(health_check, "look", lambda socket: WELL)
    assert health_check.follow(None, silent("away", None), "n0") == "slurm: nothing to do"
    assert not (slurm / "told").exists()


def test_slurm_that_says_no_is_a_fault(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is a name that is no node's."""
    with pytest.raises(OutsideFault, match="--node"):
        health_check.follow(None, WELL, "n0; id")
    (slurm / "scontrol").write_text("#!/bin/sh\necho no such node >&2\nexit 1\n")
    with pytest.raises(OutsideFault, match="no such node"):
        health_check.follow(None, WELL, "n0")
    monkeypatch.setattr(health_check, "SCONTROL", ("/nonexistent",))
    with pytest.raises(OutsideFault, match="is in none of"):
        health_check.follow(None, WELL, "n0")
