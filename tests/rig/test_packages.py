"""The Debian package on a real systemd: installed, upgraded, its agent killed, rolled back, removed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulease.transport import Transport
from tests.rig import machine
from tests.rig.wired import CGROUPS, CLOSED, command

pytestmark = pytest.mark.rig

ROOT = Path(__file__).parents[2]
DEBS = sorted((ROOT / "dist").glob("nodeagent_*_amd64.deb"))
DROP_IN = Path("/etc/systemd/system/nodeagent.service.d/rig.conf")
SESSION = CGROUPS / "user.slice/rig-packages"
STATE = Path("/var/lib/nodeagent")
MACHINE = Path("/etc/nodeagent-rig.json")
SOCKET = Path("/run/nodeagent/api.sock")
START = "/opt/nodeagent/bin/nodeagent serve --launcher /run/nodeagent-outside/socket"
WATCHDOG_SECONDS = 60
PATIENCE = float(os.environ.get("NODEAGENT_PATIENCE", "1"))
LEFT = (
    *("/opt/nodeagent", "/etc/nodeagent", "/var/lib/nodeagent", "/var/spool/nodeagent", "/run/nodeagent"),
    *("/run/nodeagent-outside", "/usr/lib/python3/dist-packages/gpulease", "/usr/libexec/nodeagent"),
)


def run(*words: str) -> str:
    """Run it as root in a user's session; what it printed. It must succeed."""
    ran = subprocess.run(in_session(*words), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{words}: {ran.stdout}{ran.stderr}"
    return ran.stdout


def in_session(*words: str) -> list[str]:
    """As one who logged in: in the tests' own service a lease would nest."""
    SESSION.mkdir(parents=True, exist_ok=True)
    return ["/bin/sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(SESSION), *words]


def apt(*words: str) -> None:
    """apt-get without questions, and without a network."""
    options = ("-qq", "-o", "Dpkg::Use-Pty=0", "-o", "Acquire::http::Timeout=1")
    ran = subprocess.run(
        ["apt-get", *options, "-y", *words],
        capture_output=True,
        text=True,
        check=False,
        env={"DEBIAN_FRONTEND": "noninteractive", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def agent(name: str) -> str:
    """A property of the agent's unit."""
    return command("systemctl", "show", "--property", name, "--value", "nodeagent.service")


def other_version(directory: Path, deb: Path, version: str) -> Path:
    """The same package under another version, as a later build is."""
    tree = directory / "tree"
    command("dpkg-deb", "-R", str(deb), str(tree))
    control = tree / "DEBIAN/control"
    control.write_text(re.sub("(?m)^Version: .*", f"Version: {version}", control.read_text()))
    made = directory / f"nodeagent_{version}_amd64.deb"
    assert "building" in command("dpkg-deb", "--root-owner-group", "-Znone", "-b", str(tree), str(made))
    return made


@pytest.fixture(scope="module")
def deb() -> Iterator[Path]:
    """The package, and a node whose agent will run on fakegpu's cards; all of it is gone afterwards."""
    if not DEBS:
        pytest.skip("there is no package in dist/: make deb")
    machine.write(MACHINE)
    DROP_IN.parent.mkdir(parents=True)
    DROP_IN.write_text(
        f"[Service]\nWatchdogSec={WATCHDOG_SECONDS}\nTimeoutStartSec=infinity\n"
        f"ExecStart=\nExecStart={START} --simulate {MACHINE}\n"
    )
    yield DEBS[-1]
    command("apt-get", "-qq", "-y", "purge", "nodeagent")
    DROP_IN.unlink()
    DROP_IN.parent.rmdir()
    MACHINE.unlink()
    command("systemctl", "daemon-reload")


@pytest.fixture(scope="module")
def installed(deb: Path) -> Path:
    """Installed by apt, which needs nothing from elsewhere; its agent has tried the limits."""
    apt("install", str(deb))
    return deb


class Holder:
    """A lease whose command sleeps, started by `gpulease run`."""

    def __init__(self, *options: str) -> None:
        await_limits()
        words = ("/usr/bin/gpulease", "run", "--cu", "25%", "--vram", "1G", *options, "--")
        script = 'echo "$GPULEASE_ID $$"; exec sleep infinity'
        self._wrapper = subprocess.Popen(
            in_session(*words, "/bin/sh", "-c", script), stdout=subprocess.PIPE, text=True
        )
        assert self._wrapper.stdout
        self.lease, self.pid = self._wrapper.stdout.readline().split()

    def cgroup(self) -> Path:
        """The cgroup of its command."""
        path = Path(f"/proc/{self.pid}/cgroup").read_text().rpartition("::")[2].strip()
        return Path(f"{CGROUPS}{path}")

    def held(self) -> bool:
        """Whether its command runs in its lease, which the agent knows for active."""
        shown = command("/usr/bin/gpulease", "show", self.lease)
        return f"lease {self.lease}: active" in shown and f"-{self.lease}.slice" in str(self.cgroup())

    def end(self) -> None:
        """As a user does, or, where there is no agent any more, by its command's end."""
        if Path("/usr/bin/gpulease").exists():
            command("/usr/bin/gpulease", "release", self.lease)
        command("kill", self.pid)
        self._wrapper.kill()
        self._wrapper.wait()


@pytest.fixture
def holders(installed: Path) -> Iterator[tuple[Holder, Holder]]:
    """One whose command gpulease started, and one whose command the agent did, outside of its sandbox."""
    made = (Holder(), Holder("--private-ipc"))
    yield made
    for holder in made:
        holder.end()


def limits(holders: tuple[Holder, ...]) -> list[str]:
    """What the kernel holds each to."""
    return [
        (holder.cgroup() / "dmem.max").read_text()
        for holder in holders
        if (holder.cgroup() / "dmem.max").exists()
    ]


def readme_commands() -> list[str]:
    """The commands of the README's first block below "Install it"."""
    section = (ROOT / "README.md").read_text().partition("## Install it\n")[2]
    block = section.partition("```sh\n")[2].partition("```")[0]
    return [line.partition("  #")[0].strip() for line in block.splitlines() if line.strip()]


def await_limits() -> None:
    """Until the agent has tried the limits of every card, which takes a few seconds of its first start."""
    deadline = time.monotonic() + 60 * PATIENCE
    transport = Transport(str(SOCKET), timeout=10 * PATIENCE)
    while True:
        node = json.loads(transport.call("GET", "/v1/node").body)
        tier = next(tier for tier in node["tiers"] if tier["name"] == "dmem")
        if tier["present"] and tier["why"] == CLOSED:
            return
        assert time.monotonic() < deadline, tier
        time.sleep(1)


def test_five_commands_of_the_readme_lead_to_a_fenced_run(deb: Path) -> None:
    """As they stand there, on a node that has nothing but the package: the kernel fences the last one's."""
    commands = readme_commands()
    assert len(commands) == 5
    for line in commands:
        words = shlex.split(line.replace("./nodeagent_*_amd64.deb", str(deb)).replace("sudo ", ""))
        if words[:2] == ["apt", "install"]:
            apt(*words[1:])
            await_limits()
            continue
        said = run(*(["/usr/bin/gpulease", *words[1:]] if words[0] == "gpulease" else words))
    assert "GPULEASE_ID=" in said
    lease = re.findall(r"GPULEASE_ID=(\d+)", said)[0]
    assert "memory=kernel" in command("/usr/bin/gpulease", "show", lease)
    assert agent("StatusText") == "granting"
    figure = re.search(
        r"exposure level for nodeagent.service: ([0-9.]+)",
        command("systemd-analyze", "security", "--no-pager", "nodeagent.service"),
    )
    assert figure
    assert float(figure[1]) <= 4.0


def test_who_calls_during_a_restart_waits(installed: Path) -> None:
    """No prolog fails for it: the connection is in the socket's queue until there is an agent again."""
    main = agent("MainPID")
    restart = subprocess.Popen(["systemctl", "restart", "nodeagent.service"])
    answers = []
    while restart.poll() is None:
        answers.append(Transport(str(SOCKET), timeout=60 * PATIENCE).call("GET", "/v1/devices").status)
    assert restart.returncode == 0
    assert agent("MainPID") != main
    assert set(answers) == {200}


@pytest.mark.slow
def test_leases_outlive_upgrade_watchdog_and_rollback(
    installed: Path, holders: tuple[Holder, ...], tmp_path: Path
) -> None:
    """Three new agents, the same leases: their commands run on, under the same limits."""
    before, main = limits(holders), agent("MainPID")
    later = other_version(tmp_path, installed, "9.9.9")
    apt("install", str(later))
    assert agent("MainPID") != main
    assert all(holder.held() for holder in holders)

    main = agent("MainPID")
    for pid in Path(CGROUPS, "system.slice/nodeagent.service/cgroup.procs").read_text().split():
        command("kill", "-STOP", pid)
    deadline = time.monotonic() + 20 * WATCHDOG_SECONDS
    while agent("MainPID") in (main, "0") or agent("ActiveState") != "active":
        assert time.monotonic() < deadline, "the watchdog let it be"
        time.sleep(1)
    assert int(agent("NRestarts")) == 1  # by systemd: who is stopped ends nothing by itself
    assert all(holder.held() for holder in holders)

    apt("install", "--allow-downgrades", str(installed))
    assert agent("ActiveState") == "active"
    assert all(holder.held() for holder in holders)
    assert limits(holders) == before


@pytest.mark.slow
def test_removal_leaves_commands_alone_and_purge_nothing_behind(deb: Path) -> None:
    """Removed, the agent is gone, what it closed is open, and a lease's command lives; purged, no trace."""
    apt("install", str(deb))
    holder = Holder()
    told = Path("/etc/docker/daemon.json")
    before = told.read_text() if told.exists() else None
    try:
        told.parent.mkdir(exist_ok=True)
        told.write_text('{"authorization-plugins": ["nodeagent"]}')
        assert "not removed" in command("dpkg", "--remove", "nodeagent")
        assert agent("ActiveState") == "active"
    finally:
        told.unlink() if before is None else told.write_text(before)
    apt("remove", "nodeagent")
    assert not SOCKET.exists() or agent("ActiveState") == "inactive"
    assert Path(f"/proc/{holder.pid}").exists()
    outside = CGROUPS / "user.slice/dmem.max"
    if outside.exists():
        assert all(line.endswith(" max") for line in outside.read_text().splitlines())
    holder.end()
    apt("purge", "nodeagent")
    assert [path for path in LEFT if Path(path).exists()] == []
    assert list(CGROUPS.glob("**/gpulease*")) == []
    assert "gpuadmin" not in Path("/etc/group").read_text()
    assert "gpulease" not in Path("/proc/mounts").read_text()
    assert command("systemctl", "list-unit-files", "--no-legend", "nodeagent*") == ""
