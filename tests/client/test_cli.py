"""The command's words, output and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CLIENT = Path(__file__).parents[2] / "client" / "gpulease"
HEADER = "DEVICE PRODUCT GFX CUS ROW VRAM SLOTS NUMA HIVE OWNER STATE"
STATUS = """\
node gpu01, test, agent 0.1.0, ready, 1 device, 3 leases
0000:c1:00.0/0 [aaaaaaaabbbb!!!!······················] 176/304 CU 94/190 GiB
· free; one cell is 8 CUs; on the right what is free of what there is
! quarantined: not proved clean, so not granted

   LEASE  STATE        HOLDER                CUS         VRAM    ENDS
a  1001   active       client:someone uid 0  64 eff. 64  48 GiB  -
b  1002   active       slurm:*               32 eff. 32  24 GiB  2031-05-04T~
c  1003   quarantined  client:someone uid 0  32 eff. 32  24 GiB  -
"""


def add_three_leases(agent: Any) -> None:
    def piece(cus: str, state: str = "held") -> list[dict[str, Any]]:
        one = {
            "device": "0000:c1:00.0/0",
            "cus": cus,
            "cu_requested": 32,
            "cu_count": 32,
            "effective_cus": 32,
        }
        return [{**one, "vram_bytes": 24 << 30, "queue_slots": 2, "state": state}]

    mine = {"kind": "client", "id": "someone", "uid": 0}
    agent.add_lease(holder=mine)
    agent.add_lease(
        slices=piece("64-95"),
        holder={"kind": "slurm", "id": None, "uid": None},
        expires_at="2031-05-04T12:00:00.000Z",
    )
    agent.add_lease(slices=piece("96-127", "quarantined"), state="failed", holder=mine)
    agent.devices[0]["free"] = {"cus": 176, "vram_bytes": 94 << 30, "queue_slots": 15}


def test_status(agent: Any, gpulease: Any) -> None:
    """status draws the leases on the device and names them below, within 80 columns."""
    add_three_leases(agent)
    done = gpulease("status")
    assert done.stdout.splitlines()[:5] == STATUS.splitlines()[:5]
    assert [line.split()[:3] for line in done.stdout.splitlines()[5:]] == [
        line.split()[:3] for line in STATUS.splitlines()[5:]
    ]
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("columns", [60, 80, 132, 400])
def test_status_fits(agent: Any, gpulease: Any, columns: int) -> None:
    """The bars fit the terminal, a device of 63 partitions too."""
    add_three_leases(agent)
    agent.devices = [{**agent.devices[0], "device": f"0000:c1:00.0/{n}", "cus": 38} for n in range(63)]
    lines = gpulease("status", env={"COLUMNS": str(columns)}).stdout.splitlines()
    assert max(len(line) for line in lines if line.startswith("0000")) <= columns


def test_status_in_ascii(agent: Any, gpulease: Any) -> None:
    """Without UTF-8 the drawing is ASCII."""
    add_three_leases(agent)
    done = gpulease("status", env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert done.stdout.isascii()
    assert "[aaaaaaaabbbb!!!!......" in done.stdout


def test_status_of_an_unhealthy_device(agent: Any, gpulease: Any) -> None:
    """A device that grants nothing says why."""
    agent.devices[0].update(state="unhealthy", reason="mem_info_vram_total: No such file", cus=0)
    assert "unhealthy: mem_info_vram_total" in gpulease("status").stdout


def test_filters(agent: Any, gpulease: Any) -> None:
    """status shows only the leases that the filters leave."""
    add_three_leases(agent)
    agent.leases[1001]["created_at"] = "2001-01-01T00:00:00Z"

    def shown(*words: str) -> list[int]:
        return [lease["id"] for lease in json.loads(gpulease("status", "--json", *words).stdout)["leases"]]

    assert shown() == [1001, 1002, 1003]
    assert shown("--state", "active") == [1001, 1002]
    assert shown("--user", "root") == shown("--user", "0") == [1001, 1003]
    assert shown("--device", ",0000:c1:00.0/0,") == shown("--device", "0000:c1:00.0") == [1001, 1002, 1003]
    assert shown("--since", "2020-01-01T00:00:00Z") == shown("--since", "1d") == [1002, 1003]


@pytest.mark.parametrize("command", ["status", "devices", "numbering", "events"])
def test_a_filter_takes_every_printed_name(agent: Any, gpulease: Any, device: Any, command: str) -> None:
    """What --device means is the agent's to say; a name of no device is a usage error."""
    agent.devices.append({**device, "device": "0000:c2:00.0/0", "pci": "0000:c2:00.0", "unique_id": "0x1"})
    agent.devices[1].update(uuid=None, render_node="renderD129", card="card2")
    agent.events = [
        {"id": 1, "kind": "drained", "device": key} for key in ("0000:c1:00.0/0", "0000:c2:00.0/0")
    ]
    for name in ("0000:c1:00.0/0", "renderD128", "card1", "GPU-00a1b2c3d4e5f607"):
        shown = gpulease(command, "--device", name).stdout
        assert "0000:c1:00.0" in shown and "0000:c2:00.0" not in shown
    done = gpulease(command, "--device", "renderD200")
    assert (done.returncode, done.stdout) == (2, "")
    assert "UnknownThing: 'renderD200' names no device" in done.stderr


def test_devices(agent: Any, gpulease: Any) -> None:
    """devices is a table of what is there and free."""
    header, row = gpulease("devices").stdout.splitlines()
    assert header.split() == HEADER.split()
    assert "gfx942  304/304  32   190/192 GiB  24/24  0     -     any    healthy" in row


def test_numbering(agent: Any, gpulease: Any, device: Any) -> None:
    """numbering puts every number of a device side by side, also where the agent serves fewer."""
    agent.devices.append({**device, "device": "d/1", "ordinal": 1, "uuid": None, "unique_id": "0x1"})
    agent.devices.append({"device": "d/2", "slurm_index": 4})
    agent.add_lease()
    agent.leases[1001]["slices"].insert(0, {"device": "d/1"})
    _, *rows = (line.split() for line in gpulease("numbering").stdout.splitlines())
    first = "0000:c1:00.0/0 0000:c1:00.0 card1 renderD128 2 51234 0 0 0 - 1 GPU-00a1b2c3d4e5f607"
    assert rows[0] == first.split()
    assert rows[1][6:] == ["1", "0", "0", "-", "0", "0x0000000000000001"]
    assert rows[2] == ["d/2", *"--------", "4", "-", "-"]


def test_numbering_counts_as_a_lease_does(agent: Any, gpulease: Any, device: Any) -> None:
    """The place of each device in a lease is that of the lease named; of several of one's own none."""
    agent.devices.append({**device, "device": "d/1"})
    for places in (["d/1", device["device"]], ["d/1"]):
        agent.add_lease(slices=[{"device": key} for key in places])

    def local(*words: str) -> list[Any]:
        found = json.loads(gpulease("numbering", *words, "--json").stdout)
        return [one["local_index"] for one in found["devices"]]

    assert local("1001") == [1, 0]
    assert local("1002") == [None, 0]
    assert local() == [None, None]
    assert gpulease("numbering", "999").returncode == 2


def test_a_whole_partition_is_asked_for(agent: Any, gpulease: Any) -> None:
    """--partition goes with no size, and says so before anything is sent."""
    assert gpulease("grant", "--partition", "--gpus", "2", "--request-id", "x").returncode == 0
    assert agent.called("POST", "/v1/leases$")[0]["slices"] == [{"partition": True, "count": 2}]
    done = gpulease("grant", "--partition", "--vram", "1G")
    assert (done.returncode, "leave --vram and --cu out" in done.stderr) == (2, True)
    assert len(agent.called("POST", "/v1/leases$")) == 1


def test_a_place_in_one_s_own_lease_names_a_device(agent: Any, gpulease: Any) -> None:
    """local:N is sent as the place in the lease that the command runs in; without one it is no name."""
    agent.add_lease()
    gpulease("grant", "--vram", "1G", "--device", "local:1", "--not-device", "rocr:0", "--request-id", "x")
    asked = agent.called("POST", "/v1/leases$")[0]["slices"][0]
    assert (asked["device"], asked["not_device"]) == (["lease:1001:1"], ["rocr:0"])
    agent.leases.clear()
    assert gpulease("grant", "--vram", "1G", "--device", "local:1").returncode == 2


def test_show(agent: Any, gpulease: Any) -> None:
    """show tells asked, granted and effective CUs, and what the workload gets."""
    agent.add_lease()
    shown = gpulease("show", "1001").stdout
    assert "64 CUs (0-63), asked 76, effective 64" in shown
    assert "  ROCR_VISIBLE_DEVICES=0\n  unset HIP_VISIBLE_DEVICES" in shown


def test_show_tells_what_programs_say(agent: Any, gpulease: Any) -> None:
    """What a lease's programs use by their own count, and what they were refused; else nothing."""
    lease = agent.add_lease(denied=3)
    assert "programs tell" not in gpulease("show", "1001").stdout
    lease["slices"][0]["told_bytes"] = 1 << 30
    shown = gpulease("show", "1001").stdout
    assert "48 GiB, of which its programs tell 1 GiB" in shown
    assert "denied    3 requests for more" in shown


def test_show_tells_when_a_lease_ended(agent: Any, gpulease: Any) -> None:
    """An ended lease says when it ended, not when it would have."""
    times = {"expires_at": "2031-05-04T13:00:00Z", "ended_at": "2031-05-04T12:00:00Z"}
    agent.add_lease(state="released", **times)
    shown = gpulease("show", "1001").stdout
    assert "  ended     2031-05-04T12:00:00Z\n" in shown and "  ends " not in shown


def test_a_whole_device_is_said(gpulease: Any) -> None:
    """A grant that names no size says that it takes a whole device."""
    assert "taking a whole device, exclusively" in gpulease("grant").stderr
    assert "exclusively" not in gpulease("grant", "--cu", "1").stderr


def test_grant_renew_release(agent: Any, gpulease: Any) -> None:
    """A grant lives by renewals and ends by a release."""
    done = gpulease("grant", "--vram", "1G", "--request-id", "r-1")
    assert (done.returncode, "gpulease renew 1001" in done.stderr) == (0, True)
    assert agent.called("POST")[0]["holder"] == {"kind": "client", "id": "r-1"}
    assert agent.called("POST")[0]["anchor"] == {"kind": "ttl"}
    assert gpulease("renew", "client:r-1", "--ttl", "2h").returncode == 0
    assert agent.called("POST", ".*renew") == [{"ttl_seconds": 7200}]
    assert gpulease("release", "1001").stdout == "lease 1001: released\n"


def test_release_into_quarantine(agent: Any, gpulease: Any) -> None:
    """A release that leaves a slice quarantined is no success."""
    agent.add_lease()
    agent.release_state = "failed"
    done = gpulease("release", "1001")
    assert (done.returncode, done.stdout) == (3, "lease 1001: failed\n")
    assert "Quarantined" in done.stderr


@pytest.mark.parametrize(
    ("target", "anchor", "kind"),
    [
        ("4711", {"kind": "process", "pid": 4711}, "process"),
        ("/a.slice/b.scope", {"kind": "cgroup", "cgroup": "/a.slice/b.scope"}, "client"),
    ],
)
def test_adopt(agent: Any, gpulease: Any, target: str, anchor: Any, kind: str) -> None:
    """adopt takes in a process or a cgroup, and says that its memory is not charged."""
    done = gpulease("adopt", target, "--vram", "1G")
    (body,) = agent.called("POST")
    assert (body["anchor"], body["holder"]["kind"]) == (anchor, kind)
    assert "memory stays advisory" in done.stderr


def test_adopt_nothing(gpulease: Any) -> None:
    """What is neither a pid nor a path is a usage error, and so is a number that no process has."""
    for target in ("firefox", "0", "1", "99999999"):
        assert gpulease("adopt", target).returncode == 2


def test_env(agent: Any, gpulease: Any) -> None:
    """env gives a shell the lease's environment, word for word, and nothing else."""
    agent.environment = {"A": "it's; $(touch x) `y`", "HIP_VISIBLE_DEVICES": None}
    agent.add_lease()
    script = gpulease("env", env={"GPULEASE_ID": "1001"}).stdout
    assert "unset HIP_VISIBLE_DEVICES\n" in script
    shell = subprocess.run(
        ["sh", "-c", script + 'printf %s "$A"'], capture_output=True, text=True, check=True
    )
    assert shell.stdout == "it's; $(touch x) `y`"


@pytest.mark.parametrize("environment", [{"A;rm -rf": "1"}, {"A": "1\n2"}, {"A": "\x1b[2J"}])
def test_env_that_no_shell_may_read(agent: Any, gpulease: Any, environment: Any) -> None:
    """Names that no shell has, and control characters, are refused as a whole."""
    agent.add_lease(environment=environment)
    done = gpulease("env", "1001")
    assert (done.returncode, done.stdout) == (2, "")


def test_env_of_a_masked_lease(agent: Any, gpulease: Any) -> None:
    """The environment of another's lease is not ours to have."""
    agent.add_lease(environment=None)
    assert gpulease("env", "1001").returncode == 4


@pytest.mark.parametrize(("state", "code"), [("released", "StaleLease"), ("queued", "NotGranted")])
def test_env_of_a_lease_that_has_none(agent: Any, gpulease: Any, state: str, code: str) -> None:
    """A lease that ended, or waits yet, gives a shell nothing: its share may be another's."""
    agent.canned = [(200, agent.add_lease(state=state), {})]
    done = gpulease("env", "1001")
    assert (done.returncode, done.stdout) == (3, "")
    assert f"gpulease: {code}: lease 1001" in done.stderr


def test_history(agent: Any, gpulease: Any) -> None:
    """Leases that ended, in the order in which they did and escaped; the agent filters by their end."""
    agent.add_lease(state="released", ended_at="2031-05-04T12:10:00.000Z", reason="done\x1b[2J")
    agent.add_lease(state="failed", ended_at="2031-05-04T12:05:00.000Z", reason="not clean")
    agent.add_lease()
    first, second = gpulease("history").stdout.splitlines()[1:]
    assert first.startswith("1002") and "failed" in first and "not clean" in first
    assert second.startswith("1001") and "done\\x1b[2J" in second
    (failed,) = gpulease("history", "--state", "failed").stdout.splitlines()[1:]
    assert failed.split() == first.split()
    assert gpulease("history", "--device", "none/9").stdout.splitlines()[1:] == []
    gpulease("history", "--since", "2031-05-04T12:00:00Z", "--user", "5")
    assert "ended_since=2031-05-04T12:00:00Z" in agent.requests[-1][1].replace("%3A", ":")
    assert "user=5" in agent.requests[-1][1] and "state=released,failed,cancelled" in agent.requests[-1][1]
    body = json.loads(gpulease("history", "--json").stdout)
    assert [lease["id"] for lease in body["leases"]] == [1002, 1001]


def test_show_ends_with_what_befell_the_lease(agent: Any, gpulease: Any) -> None:
    """Its events, as many times as they came; none where there are none to see."""
    agent.add_lease()
    assert "events" not in gpulease("show", "1001").stdout
    agent.events = [
        {"id": 1, "kind": "granted", "at": "2031-05-04T12:00:00Z", "lease": 1001, "reason": "asked"},
        {"id": 2, "kind": "renewed", "at": "2031-05-04T12:01:00Z", "lease": 1001, "count": 12},
    ]
    lines = gpulease("show", "1001").stdout.splitlines()
    at = lines.index("  events")
    assert lines[at + 1] == "    2031-05-04T12:00:00Z  granted  asked"
    assert lines[at + 2].startswith("    2031-05-04T12:01:00Z  renewed ") and lines[at + 2].endswith("12")
    assert "newest=20" in agent.requests[-1][1] and "lease=1001" in agent.requests[-1][1]


def test_events(agent: Any, gpulease: Any) -> None:
    """events lists who did what, escaped."""
    agent.events = [
        {"id": 1, "kind": "granted", "at": "2031-05-04T10:00:00Z", "uid": 0, "lease": 7, "reason": "\x1b[2J"},
        {"id": 2, "kind": "drained", "at": "2031-05-04T11:00:00Z", "uid": 5, "device": "d/0"},
    ]
    first, second = gpulease("events").stdout.splitlines()
    assert first == "2031-05-04T10:00:00Z  granted  lease 7  uid 0  \\x1b[2J"
    assert gpulease("events", "--after", "1").stdout.splitlines() == [second]
    assert gpulease("events", "--user", "5").stdout.splitlines() == [second]
    assert gpulease("events", "--device", "d/0").stdout.splitlines() == [second]
    lines = gpulease("events", "--json").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [1, 2]


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["devices"],
        ["numbering"],
        ["show", "1001"],
        ["env", "1001"],
        ["renew", "1001"],
        ["release", "1001"],
        ["grant", "--vram", "1G"],
        ["adopt", "4711"],
    ],
)
def test_json(agent: Any, gpulease: Any, words: list[str]) -> None:
    """Every command has --json, before and behind its name: the body as served, and nothing but it."""
    agent.add_lease(reason="\x1b\u202e\x7f")
    for line in ([*words, "--json"], ["--json", *words]):
        done = gpulease(*line)
        assert json.loads(done.stdout)
        assert done.stdout.isascii()
        assert not set(done.stdout) & {"\x1b", "\x7f"}


def test_help(gpulease: Any) -> None:
    """Help tells every command and the exit codes, whatever the locale."""
    done = gpulease("--help", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "125 for any failure before it started" in done.stdout
    assert gpulease("grant", "--help", env={"PYTHONIOENCODING": "ascii"}).returncode == 0


def test_reader_that_has_enough(agent: Any, gpulease: Any) -> None:
    """A closed pipe on stdout is no error of ours."""
    agent.devices = agent.devices * 3000
    process = gpulease.start("devices")
    process.stdout.readline()
    process.stdout.close()
    assert (process.wait(), process.stderr.read()) == (0, "")


def test_bare_environment(agent: Any) -> None:
    """The command needs nothing of its environment."""
    run = f"import sys; sys.path.insert(0, {str(CLIENT)!r}); from gpulease.cli import main; sys.exit(main())"
    words = ["env", "-i", sys.executable, "-I", "-S", "-c", run, "--socket", agent.path, "devices"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "gfx942" in done.stdout


def test_standard_library_only() -> None:
    """Every module of the client imports nothing but the standard library, and none that is slow to load."""
    names = sorted(
        f"gpulease.{path.stem}" for path in (CLIENT / "gpulease").glob("*.py") if path.stem != "__main__"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(CLIENT)!r})\n"
        f"for name in {names!r}: __import__(name)\n"
        "print(*{name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))\n"
        "print(*{'http', 'email', 'ssl', 'asyncio', 'subprocess', 'uuid'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    foreign, slow = done.stdout.splitlines()
    assert set(foreign.split()) <= {"gpulease", "__main__", "sitecustomize"}
    assert slow == ""
