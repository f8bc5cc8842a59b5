"""`gpulease run --require memory=supervised`, from the command line to the driver, on a whole agent."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.adapters.supervisor import BINARY
from tests.fakekfd.driver import Gpu
from tests.fakekfd.fuse_kfd import FakeKfd, fake_kfd, usable
from tests.node.conftest import RunningNode, all_attacked, running_node

from .conftest import WAIT_SECONDS

pytestmark = [pytest.mark.cgroup2, pytest.mark.root]

USER = 54_321
ALLOC = 0xC0284B16
GIB = 1 << 30


def stand_in(node: RunningNode, fake: FakeKfd) -> None:
    """Put the fake driver where the agent looks for KFD; each start makes the machine anew."""
    root = node.state_dir / "machine"
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/kfd").symlink_to(fake.kfd)
    (root / "dev/dri").symlink_to(fake.directory / "dri")
    processes = root / "sys/class/kfd/kfd/proc"
    if processes.is_dir():
        processes.rmdir()
    processes.symlink_to(fake.proc)


@pytest.fixture(scope="module")
def node() -> Iterator[tuple[RunningNode, FakeKfd, str]]:
    """An agent on a simulated machine whose first device a fake driver serves."""
    if not BINARY.is_file():
        pytest.skip(f"{BINARY.name} is not built")
    if why := usable():
        pytest.skip(why)
    with running_node("vega10") as running:
        device = running.device()
        minor = int(device["render_node"].removeprefix("renderD"))
        with fake_kfd([Gpu(device["gpu_id"], minor, 64 * GIB, 64 * GIB)]) as fake:
            stand_in(running, fake)
            running.attacks.dev = fake.directory
            yield running, fake, device["device"]


@pytest.fixture(autouse=True)
def attacked(node: tuple[RunningNode, FakeKfd, str], request: pytest.FixtureRequest) -> Iterator[None]:
    """Every lease that a test takes is attacked from inside."""
    with all_attacked(node[0], request):
        yield


@pytest.fixture
def run(node, programs) -> Callable[..., tuple[str, ...]]:
    """The words of a supervised run of the test program with some steps, in a lease of 1 GiB."""
    _, fake, device = node
    gpu = next(iter(fake.driver.gpus.values()))

    def words(*steps: str, kind: str = "static musl") -> tuple[str, ...]:
        program = (str(programs(kind)), str(fake.kfd), str(fake.render(gpu.minor)), str(gpu.gpu_id))
        return (*OPTIONS, "--device", device, "--", *program, *steps)

    return words


OPTIONS = ("run", "--require", "memory=supervised", "--vram", "1GiB", "--cu", "8")


def test_a_static_program_is_limited(node, run):
    """A user's static program gets what is in the lease and ENOMEM beyond, and its lease is given back."""
    done = node[0].gpulease(*run(f"raw:{ALLOC}:{GIB // 2}", f"raw:{ALLOC}:{GIB // 2}"), user=USER, cwd="/")
    assert (done.stdout, done.stderr) == (f"raw=0\nraw={errno.ENOMEM}\n", "")
    assert done.returncode == 0
    assert node[0].live() == []


def test_a_supervised_command_may_have_private_ipc(node, run):
    """Both can be had: the limit as ever, and shared memory that nobody else has."""
    steps = run(f"raw:{ALLOC}:{GIB // 2}", f"raw:{ALLOC}:{GIB // 2}")
    done = node[0].gpulease("run", "--private-ipc", *steps[1:], user=USER, cwd="/")
    assert (done.stdout, done.stderr) == (f"raw=0\nraw={errno.ENOMEM}\n", "")
    guarantee = max(node[0].taken(), key=lambda lease: lease["id"])["guarantee"]
    assert (guarantee["memory"], guarantee["ipc"]) == ("supervised", "private")


def test_the_commands_code_comes_back(node):
    """Exit codes and signals come through the report."""
    agent = node[0]
    for script, code in (("exit 7", 7), ("kill -KILL $$", 137)):
        assert agent.gpulease(*OPTIONS, "--", "sh", "-c", script, user=USER, cwd="/").returncode == code


@pytest.mark.unattacked("nothing ever runs in it")
def test_a_command_that_cannot_start_is_125(node):
    """What cannot be executed is named, and leaves no lease."""
    agent = node[0]
    failed = agent.gpulease(*OPTIONS, "--", "/no/such", user=USER, cwd="/")
    assert failed.returncode == 125
    assert "/no/such" in failed.stderr.splitlines()[-1]
    assert agent.live() == []


def test_the_lease_says_so_and_lets_nothing_else_in(node, run):
    """threat 19: the lease is stated supervised, and neither attach nor exec enters it."""
    agent = node[0]
    running = agent.background(*run("read"), user=USER)
    (lease,) = agent.until(lambda: [one for one in agent.live() if one["state"] == "active"])
    assert lease["guarantee"]["memory"] == "supervised"
    agent.until(lambda: processes(lease))
    entering = agent.gpulease("exec", str(lease["id"]), "--", "true", user=USER, cwd="/")
    assert (entering.returncode, "supervised" in entering.stderr) == (125, True)
    running.stdin.write("!")
    running.stdin.flush()
    assert running.wait(WAIT_SECONDS) == 0


@pytest.mark.unattacked("nothing ever runs in it")
def test_a_directory_that_the_caller_may_not_enter_is_said(node, tmp_path):
    """A caller that stands in a directory of root's gets the reason, and its lease is given back."""
    tmp_path.chmod(0o700)
    done = node[0].gpulease(*OPTIONS, "--", "true", user=USER, cwd=str(tmp_path))
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, last) == (
        125,
        "gpulease: CommandNotExecutable: the working directory: Permission denied",
    )
    assert node[0].live() == []


def test_signals_reach_the_command(node):
    """What is sent to the wrapper is passed on, and the code tells of it."""
    agent = node[0]
    running = agent.background(
        *OPTIONS, "--", "sh", "-c", "trap 'exit 9' TERM; echo up; sleep 60 & wait", user=USER
    )
    assert running.stdout.readline() == "up\n"
    running.terminate()
    assert running.wait(WAIT_SECONDS) == 9


def test_it_goes_on_while_the_agent_is_away(node, run):
    """The agent killed and started again, the command is held as before and its lease is still its own."""
    agent, fake, _ = node
    running = agent.background(*run(f"raw:{ALLOC}:4096", "read", f"raw:{ALLOC}:{2 * GIB}"), user=USER)
    assert running.stdout.readline() == "raw=0\n"
    (before,) = agent.live()
    agent.kill()
    running.stdin.write("!")
    running.stdin.flush()
    assert running.stdout.readline() == "read=1\n"
    assert running.stdout.readline() == f"raw={errno.ENOMEM}\n"
    agent.start()
    stand_in(agent, fake)
    assert agent.lease(before["id"])["id"] == before["id"]
    assert running.wait(WAIT_SECONDS) == 0
    agent.until(lambda: not agent.live())


@pytest.mark.unattacked("nothing ever runs in it")
def test_a_sandboxed_caller_is_refused(node):
    """threat 9: a caller under a filter of its own would be let out of it by a launch, so it is refused."""
    agent = node[0]
    lock = (
        "import ctypes, os, struct, sys\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "libc.prctl(38, 1, 0, 0, 0)\n"
        "code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))\n"
        "program = struct.pack('HxxxxxxQ', 1, ctypes.addressof(code))\n"
        "assert libc.syscall(317, 1, 0, program) == 0\n"
        "os.execv('/usr/bin/python3', ['python3', '-m', 'gpulease', *sys.argv[1:]])\n"
    )
    done = agent.python("-c", lock, *OPTIONS, "--", "true", user=USER, cwd="/")
    assert (done.returncode, "seccomp" in done.stderr) == (125, True)


@pytest.mark.unattacked("nothing ever runs in it")
def test_descriptors_are_the_callers_own(node):
    """A command that is no sealed memory file, or a number that is not open, is refused."""
    agent = node[0]
    script = (
        "import json, os\n"
        "from gpulease.client import Client\n"
        "client = Client()\n"
        "lease = client.grant([{'vram_bytes': 1 << 30}], holder={'kind': 'process'},\n"
        "                     anchor={'kind': 'cgroup'}, require={'memory': 'supervised'})\n"
        "for command, report in ((os.open('/etc/passwd', 0), 1), (1000, 1)):\n"
        "    try:\n"
        "        client.launch(lease.id, command, 0, report)\n"
        "    except Exception as fault:\n"
        "        print(fault)\n"
        "client.release(lease.id, wait=5)\n"
    )
    done = agent.python("-c", script, user=USER, cwd="/")
    assert "sealed" in done.stdout
    assert "no descriptor 1000" in done.stdout


def processes(lease: dict) -> list[int]:
    """What runs in the lease's cgroup."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if kind == "cgroup2" and (path := Path(mount + lease["cgroup"], "cgroup.procs")).exists():
            return [int(pid) for pid in path.read_text().split()]
    return []
