"""`nodeagent docker-plugin`: whether it may be removed, and a plugin as it is started."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from nodeagent.cli import docker_plugin
from nodeagent.cli.main import cli
from nodeagent.domain.errors import OutsideFault

UNITS = sorted((Path(__file__).resolve().parents[2] / "systemd").glob("nodeagent-docker-plugin.*"))
STARTED = "/opt/nodeagent/bin/nodeagent docker-plugin"


@pytest.mark.parametrize(
    ("text", "used"),
    [
        (None, False),
        ("{}", False),
        ('{"authorization-plugins": []}', False),
        ('{"authorization-plugins": ["other"]}', False),
        ('{"authorization-plugins": ["other", "nodeagent"]}', True),
        ('{"authorization-plugins": ["nodeagent:latest"]}', False),
    ],
)
def test_dockers_settings_tell_whether_it_is_used(tmp_path: Path, text: str | None, used: bool) -> None:
    """The plugin's name is its socket's."""
    daemon = tmp_path / "daemon.json"
    if text is not None:
        daemon.write_text(text)
    assert docker_plugin.in_use(daemon, "nodeagent") is used


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"authorization-plugins": 1}', '{"authorization-plugins": [1]}']
)
def test_settings_that_cannot_be_read_keep_it(tmp_path: Path, text: str) -> None:
    """Removed by mistake, it would stop docker."""
    daemon = tmp_path / "daemon.json"
    daemon.write_text(text)
    with pytest.raises(OutsideFault, match="cannot tell"):
        docker_plugin.in_use(daemon, "nodeagent")


def test_removal_is_refused_while_docker_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 1 with what to do; 0 once its name is gone."""
    daemon = tmp_path / "daemon.json"
    monkeypatch.setattr(docker_plugin, "DAEMON", daemon)
    daemon.write_text(json.dumps({"authorization-plugins": ["nodeagent"]}))
    done = CliRunner().invoke(cli, ["docker-plugin", "--may-remove"])
    assert done.exit_code == 1
    assert "reload docker first" in done.output
    daemon.write_text("{}")
    assert CliRunner().invoke(cli, ["docker-plugin", "--may-remove"]).exit_code == 0


def test_it_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    """SIGTERM ends it with 0."""
    path = tmp_path / "s"
    words = [sys.executable, "-m", "nodeagent.cli.main", "docker-plugin", "--socket", str(path)]
    process = subprocess.Popen([*words, "--tickets", str(tmp_path)])
    deadline = time.monotonic() + 60
    with socket.socket(socket.AF_UNIX) as own:
        while own.connect_ex(str(path)):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        own.sendall(b"POST /Plugin.Activate HTTP/1.0\r\nContent-Length: 0\r\n\r\n")
        assert b"authz" in own.makefile("rb").read()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """Nothing in them is unknown to it; what they start is this command."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    for unit in UNITS:
        text = unit.read_text().replace(STARTED, "/bin/true")
        assert unit.suffix == ".socket" or text != unit.read_text()
        (tmp_path / unit.name).write_text(text)
    words = ["systemd-analyze", "verify", *(str(tmp_path / unit.name) for unit in UNITS)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if "nodeagent-docker-plugin" in line] == []
