"""`gpulease run` and `exec`: signals, exit codes, and no lease left behind on any way out."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

SHOW = 'echo "$ROCR_VISIBLE_DEVICES ${HIP_VISIBLE_DEVICES-unset} $GPULEASE_ID"'
SHARE = ("--vram", "1G", "--")


def test_command_in_its_lease(agent: Any, gpulease: Any) -> None:
    """The command gets the lease's environment, from a peer that attached itself, and its own output."""
    done = gpulease("run", *SHARE, "sh", "-c", SHOW + "; echo $$ >&2", env={"HIP_VISIBLE_DEVICES": "7"})
    assert (done.returncode, done.stdout) == (0, "0 unset 1001\n")
    assert agent.attached == [int(done.stderr)]
    assert agent.leases[1001]["state"] == "released"


def test_request(agent: Any, gpulease: Any) -> None:
    """The options arrive as the fields of the API; the holder is this process, the anchor its cgroup."""
    options = (
        "--gpus 2 --vram 25% --cu 64 --queues 3 --shape exact --placement spread --numa-bind --link-bind"
    )
    more = "--type MI300X,,gfx90a --not-device a/0 --not-device b/0, --priority high --require memory=kernel"
    more += " --queue-priority low"
    gpulease("run", *options.split(), *more.split(), "--ttl", "1h", "--wait", "30s", "--", "true")
    (body,) = agent.called("POST", "/v1/leases$")
    assert body.pop("request_id")
    assert body == {
        "holder": {"kind": "process"},
        "anchor": {"kind": "cgroup"},
        "slices": [
            {
                "vram_percent": 25.0,
                "cus": 64,
                "count": 2,
                "queue_slots": 3,
                "shape": "exact",
                "type": ["MI300X", "gfx90a"],
                "not_device": ["a/0", "b/0"],
            }
        ],
        "placement": "spread",
        "numa_bind": True,
        "link_bind": True,
        "priority": "high",
        "queue_priority": "low",
        "require": {"memory": "kernel"},
        "ttl_seconds": 3600,
        "wait_seconds": 30,
    }


def test_request_id_of_the_user(agent: Any, gpulease: Any) -> None:
    """With a request id of the user's the pid is part of the request: no second wrapper shares the lease."""
    done = gpulease("run", "--request-id", "job-1", *SHARE, "sh", "-c", "echo $PPID")
    (body,) = agent.called("POST", "/v1/leases$")
    assert (body["request_id"], body["holder"]["id"]) == ("job-1", done.stdout.strip())


@pytest.mark.parametrize("code", [0, 1, 3, 125, 255])
def test_exit_code(agent: Any, gpulease: Any, code: int) -> None:
    """The command's exit code is the wrapper's."""
    assert gpulease("run", *SHARE, "sh", "-c", f"exit {code}").returncode == code
    assert agent.leases[1001]["state"] == "released"


def test_killed_command(agent: Any, gpulease: Any) -> None:
    """A command killed by a signal gives 128 plus its number."""
    assert gpulease("run", *SHARE, "sh", "-c", "kill -KILL $$").returncode == 128 + 9
    assert agent.leases[1001]["state"] == "released"


def test_whole_device_is_said(agent: Any, gpulease: Any) -> None:
    """A run that names no part of a device says that it takes all of it."""
    assert "whole device, exclusively" in gpulease("run", "--", "true").stderr
    assert "2 whole devices" in gpulease("run", "--gpus", "2", "--", "true").stderr
    assert gpulease("run", *SHARE, "true").stderr == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["run", *SHARE, "/no/such/command"], "CommandNotFound"),
        (["run", *SHARE, "no-such-command"], "CommandNotFound"),
        (["run", *SHARE, "/etc/passwd"], "CommandNotExecutable"),
        (["run", "--vram", "x", "--", "true"], "Usage"),
        (["run", "--vram", "1G", "--"], "Usage"),
        (["run", "--vram", "1G"], "Usage"),
        (["run", "--exclusive", "--placement", "spread", "--", "true"], "Usage"),
        (["exec", "4711", "--", "true"], "UnknownThing"),
        (["exec", "nobody", "--", "true"], "Usage"),
        (["exec", "1001", "--", "/no/such/command"], "CommandNotFound"),
    ],
)
def test_failures_before_the_start(agent: Any, gpulease: Any, words: list[str], code: str) -> None:
    """Whatever keeps the command from starting is 125, with the code on the last line of stderr."""
    agent.add_lease()
    done = gpulease(*words)
    assert done.returncode == 125
    assert done.stderr.splitlines()[-1].startswith(f"gpulease: {code}: ")
    assert all(lease["state"] == "released" for number, lease in agent.leases.items() if number > 1001)


def test_refused(agent: Any, gpulease: Any, refusal: Any, tmp_path: Path) -> None:
    """A refused run is 125, says why, and runs nothing."""
    agent.canned_grant = (409, refusal, {})
    done = gpulease("run", *SHARE, "touch", str(tmp_path / "ran"))
    assert (done.returncode, (tmp_path / "ran").exists()) == (125, False)
    assert "8 × CardInsufficientCore: 32 CUs free, 64 asked" in done.stderr
    assert done.stderr.splitlines()[-1] == "gpulease: NodeInsufficientDevice: 0 devices fit, 1 is asked for"


def test_agent_away(gpulease: Any, tmp_path: Path) -> None:
    """Without an agent nothing runs."""
    done = gpulease(
        "--timeout", "1", "run", *SHARE, "touch", str(tmp_path / "ran"), env={"GPULEASE_SOCKET": "/nope"}
    )
    assert (done.returncode, (tmp_path / "ran").exists()) == (125, False)
    assert done.stderr.splitlines()[-1].startswith("gpulease: AgentUnreachable: /nope: ")


def test_attach_fails(agent: Any, gpulease: Any, tmp_path: Path) -> None:
    """A child that may not enter the lease starts nothing, and the lease is released."""
    lease = agent.add_lease(request_id="x")
    agent.canned = [(201, lease, {}), (403, {"code": "NotAllowed", "detail": "uses the GPU already"}, {})]
    done = gpulease("run", *SHARE, "touch", str(tmp_path / "ran"))
    assert (done.returncode, (tmp_path / "ran").exists()) == (125, False)
    assert done.stderr == "gpulease: NotAllowed: uses the GPU already\n"
    assert lease["state"] == "released"


def test_masked_environment(agent: Any, gpulease: Any, tmp_path: Path) -> None:
    """A command is not started with the environment missing: it would see every device."""
    agent.add_lease(environment=None)
    done = gpulease("exec", "1001", "--", "touch", str(tmp_path / "ran"))
    assert (done.returncode, (tmp_path / "ran").exists()) == (125, False)


def test_release_still_under_way(agent: Any, gpulease: Any) -> None:
    """A release that fails or drags on is a note; the command's exit code stays."""
    agent.release_state = "failed"
    done = gpulease("run", *SHARE, "sh", "-c", "exit 7")
    assert done.returncode == 7
    assert "quarantined" in done.stderr


def test_agent_goes_away_meanwhile(agent: Any, gpulease: Any) -> None:
    """An agent that is gone at the end costs a note, not the exit code."""
    done = gpulease("--timeout", "1", "run", *SHARE, "sh", "-c", f"rm {agent.path}; exit 7")
    assert done.returncode == 7
    assert "left for the agent to reap" in done.stderr


def test_queued(agent: Any, gpulease: Any) -> None:
    """A run that waits starts when its turn comes."""
    agent.grant_state = "queued"
    done = gpulease("run", "--wait", "1m", *SHARE, "sh", "-c", SHOW)
    assert (done.returncode, done.stdout) == (0, "0 unset 1001\n")


def test_exec(agent: Any, gpulease: Any) -> None:
    """exec becomes the command inside the lease that is there, and leaves the lease."""
    agent.add_lease()
    process = gpulease.start("exec", "1001", "--", "sh", "-c", f"{SHOW}; exit 9")
    out, _ = process.communicate()
    assert (process.returncode, out, agent.attached) == (9, "0 unset 1001\n", [process.pid])
    assert agent.leases[1001]["state"] == "active"


# 32 and 33 are the C library's own; GNU make hands them down ignored.
C_LIBRARYS_SIGNALS = 0b11 << 31


def test_signal_dispositions(agent: Any, gpulease: Any) -> None:
    """The command starts with no signal blocked or ignored by us: it must die of a closed pipe, too."""
    show = "grep -E '^Sig(Blk|Ign)' /proc/self/status"
    done = gpulease("run", *SHARE, "sh", "-c", show)
    masks = [int(line.split()[1], 16) & ~C_LIBRARYS_SIGNALS for line in done.stdout.splitlines()]
    assert masks == [0, 0]


def test_nohup(agent: Any, gpulease: Any) -> None:
    """What was ignored from the start stays ignored in the command."""
    done = gpulease(
        *("run", *SHARE, "grep", "^SigIgn", "/proc/self/status"),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    ignored = int(done.stdout.split()[1], 16) & ~C_LIBRARYS_SIGNALS
    assert ignored == 1 << (signal.SIGHUP - 1)


TRAPPING = """
import os, signal, sys
def seen(number, _):
    with open(sys.argv[1], "a") as log:
        log.write(signal.Signals(number).name + "\\n")
    if number in (signal.SIGTERM, signal.SIGINT):
        sys.exit(42)
for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(one, seen)
with open(sys.argv[1], "a") as log:
    log.write(str(os.getpid()) + "\\n")
while True:
    signal.pause()
"""


@pytest.fixture
def trapping(
    gpulease: Any, tmp_path: Path, until: Callable[..., Any]
) -> tuple[Any, Callable[[], list[str]], int]:
    """A run whose command logs its signals: the wrapper, the log's reader, the command's pid."""
    log = tmp_path / "signals"
    wrapper = gpulease.start("run", *SHARE, sys.executable, "-c", TRAPPING, str(log))

    def lines() -> list[str]:
        return log.read_text(encoding="ascii").splitlines() if log.exists() else []

    until(lines)
    return wrapper, lambda: lines()[1:], int(lines()[0])


@pytest.mark.parametrize("name", ["SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_signals_are_passed_on(trapping: Any, until: Callable[..., Any], agent: Any, name: str) -> None:
    """A signal to the wrapper reaches the command, once, and the wrapper stays until the command ends."""
    wrapper, seen, _ = trapping
    wrapper.send_signal(getattr(signal, name))
    until(seen)
    wrapper.terminate()
    assert wrapper.wait() == 42
    assert seen() == [name, "SIGTERM"]
    assert agent.leases[1001]["state"] == "released"


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def test_stop_and_continue(trapping: Any, until: Callable[..., Any]) -> None:
    """A command stopped by hand does not stop the wrapper, and a SIGCONT to the wrapper wakes it."""
    wrapper, _, command = trapping
    os.kill(command, signal.SIGSTOP)
    until(lambda: state_of(command) == "T")
    assert state_of(wrapper.pid) != "T"
    wrapper.send_signal(signal.SIGCONT)
    until(lambda: state_of(command) == "S")
    wrapper.terminate()
    assert wrapper.wait() == 42


def test_killed_wrapper(trapping: Any, until: Callable[..., Any]) -> None:
    """A wrapper that is killed takes its command along by SIGTERM."""
    wrapper, seen, _ = trapping
    wrapper.kill()
    assert until(seen) == ["SIGTERM"]
    assert wrapper.wait() == -signal.SIGKILL


def test_interrupt_from_a_terminal(
    agent: Any, gpulease: Any, tmp_path: Path, until: Callable[..., Any]
) -> None:
    """Ctrl-C reaches the command once: from the terminal, not from the wrapper as well."""
    log = tmp_path / "signals"
    words = [sys.executable, "-m", "gpulease", "run", *SHARE, sys.executable, "-c", TRAPPING, str(log)]
    python_path = str(Path(__file__).parents[2] / "client" / "gpulease")
    environment = {"PATH": os.environ["PATH"], "GPULEASE_SOCKET": agent.path, "PYTHONPATH": python_path}
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, words, environment)
    try:
        until(lambda: log.exists() and log.read_text(encoding="ascii"))
        os.write(terminal, b"\x1c")  # Ctrl-\: SIGQUIT, which the command survives
        until(lambda: "SIGQUIT" in log.read_text(encoding="ascii"))
        os.write(terminal, b"\x03")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.close(terminal)
    assert log.read_text(encoding="ascii").split()[1:] == ["SIGQUIT", "SIGINT"]
    assert agent.leases[1001]["state"] == "released"


def test_suspend_from_a_terminal(agent: Any, tmp_path: Path, until: Callable[..., Any]) -> None:
    """Ctrl-Z stops command and wrapper, so that the shell gets its prompt; fg wakes both."""
    log = tmp_path / "log"
    python_path = str(Path(__file__).parents[2] / "client" / "gpulease")
    environment = {
        "PATH": os.environ["PATH"],
        "GPULEASE_SOCKET": agent.path,
        "PYTHONPATH": python_path,
        "PS1": "$ ",
        "HOME": str(tmp_path),
    }
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"], environment)
    try:
        # exec, for a shell that is stopped between vfork and exec of a child never shows as stopped.
        run = f"{sys.executable} -m gpulease run --vram 1G -- sh -c 'echo $$ $PPID >>{log}; exec sleep 60'\n"
        os.write(terminal, run.encode())
        until(lambda: log.exists() and log.read_text(encoding="ascii"))
        os.write(terminal, b"\x1a")
        os.write(terminal, f"jobs >{tmp_path}/jobs; echo done >>{tmp_path}/jobs\n".encode())
        jobs = tmp_path / "jobs"
        until(lambda: jobs.exists() and "done" in jobs.read_text(encoding="utf-8"))
        assert "Stopped" in jobs.read_text(encoding="utf-8")
        os.write(terminal, b"fg\n")
        both = log.read_text(encoding="ascii").split()
        until(lambda: all(state_of(int(one)) == "S" for one in both))
        os.write(terminal, b"\x03")  # before fg it would be the shell's
        until(lambda: agent.leases[1001]["state"] == "released")
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_while_queued(agent: Any, gpulease: Any, until: Callable[..., Any], name: str) -> None:
    """A signal to a run that still waits gives its place back and is 125."""
    lease = agent.add_lease(state="preparing", request_id="x")
    agent.canned = [(202, lease, {})]
    wrapper = gpulease.start("run", "--wait", "1m", *SHARE, "true")
    until(lambda: agent.called("GET", "/v1/leases/1001"))
    wrapper.send_signal(getattr(signal, name))
    _, err = wrapper.communicate()
    assert (wrapper.returncode, err) == (125, f"gpulease: Interrupted: {name} before the command started\n")
    assert lease["state"] == "released"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signal_while_a_grant_waits(agent: Any, gpulease: Any, until: Callable[..., Any], name: str) -> None:
    """A signal to a grant that still waits gives its place back: nobody would use what came of it."""
    lease = agent.add_lease(state="preparing", request_id="x")
    agent.canned = [(202, lease, {})]
    process = gpulease.start("grant", "--wait", "1m", "--cu", "25%")
    until(lambda: agent.called("GET", "/v1/leases/1001"))
    process.send_signal(getattr(signal, name))
    process.communicate()
    assert process.returncode == 128 + getattr(signal, name)
    assert lease["state"] == "released"


def test_signal_before_the_answer(
    agent: Any, gpulease: Any, tmp_path: Path, until: Callable[..., Any]
) -> None:
    """A signal between a grant and its answer gives back the lease that the agent made, found by the id."""
    hidden = Path(agent.path).with_suffix(".hidden")
    Path(agent.path).rename(hidden)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(agent.path)
        silent.listen()
        wrapper = gpulease.start("run", *SHARE, "true")
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(65536).startswith(b"POST /v1/leases ")
            hidden.rename(agent.path)  # from here on the real one answers
            wrapper.terminate()
            wrapper.wait()
    assert wrapper.returncode == 125
    assert [lease["state"] for lease in agent.leases.values()] == ["released"]


def test_json(agent: Any, gpulease: Any) -> None:
    """--json shows the lease on stderr: stdout is the command's."""
    done = gpulease("run", "--json", *SHARE, "echo", "mine")
    assert done.stdout == "mine\n"
    assert '"id": 1001' in done.stderr


def test_pipeline(agent: Any, gpulease: Any) -> None:
    """Input and output of the command are the wrapper's."""
    process = gpulease.start("run", *SHARE, "cat", stdin=subprocess.PIPE)
    assert process.communicate("through\n")[0] == "through\n"
