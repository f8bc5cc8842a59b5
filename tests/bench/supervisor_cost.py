"""What the supervisor costs a call: the same loop alone, at the floor and supervised, in turns.

/dev/null stands for KFD, so that only the way there is measured; its counters are files of a directory.
The floor is a supervisor that says "go on" without a look: what is above it is ours.
The runs of a round are each other's neighbours in time, so what else the machine does falls on all.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from gpulease.supervised import sealed
from nodeagent.adapters.cgroup import CgroupTree
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.adapters.hook_format import HookDevice
from nodeagent.adapters.inheritance import Inherited
from nodeagent.adapters.supervisor import BINARY, Launch, Offered, Supervisor
from nodeagent.domain.cuset import CuSet

GPU = 4096
HERE = Path(__file__).parent
HOOK = HERE.parents[1] / "nodeagent" / "hook"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=20_000)
    given = parser.parse_args()
    mount = find_mount()
    if mount is None or os.geteuid() != 0 or not BINARY.is_file():
        print("needs root, cgroup2 and a built supervisor", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        loop, floor = (Path(scratch) / name for name in ("loop", "floor"))
        compile_program(loop, HERE / "ioctl_loop.c")
        compile_program(floor, HERE / "notify_floor.c", HOOK / "supervisor_filter.c")
        place = f"{scratch}/proc/$$"
        words = f"exec {loop} /dev/null {GPU} {given.calls}"
        command = ("/bin/sh", "-c", f"mkdir -p {place}; echo 0 >{place}/vram_{GPU}; {words}")
        tree = CgroupTree(mount, f"gpulease_{secrets.token_hex(6)}.slice")
        rounds = []
        try:
            for _ in range(given.rounds):
                texts = (output(*command), output(floor, *command))
                rounds.append([measured(text) for text in (*texts, under_supervisor(tree, command, scratch))])
        finally:
            tree.leave()
    for index, name in enumerate(("allocation", "other ioctl")):
        alone, least, supervised = (statistics.median(one[way][index] for one in rounds) for way in range(3))
        ours = statistics.median(one[2][index] - one[1][index] for one in rounds)
        print(f"{name}: {alone:.0f} ns alone, {least:.0f} ns floor, {supervised:.0f} ns supervised", end=", ")
        print(f"{ours:+.0f} ns above the floor (median of the rounds)")
    return 0


def compile_program(made: Path, *sources: Path) -> None:
    subprocess.run(["cc", "-O2", "-I", HOOK, "-o", made, *sources], check=True)


def output(*words: str | Path) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def measured(text: str) -> tuple[float, float]:
    first, second = map(float, text.split())
    return first, second


def under_supervisor(tree: CgroupTree, command: tuple[str, ...], scratch: str) -> str:
    """What *command* prints, supervised as root, in a cgroup of its own."""
    supervisor = Supervisor(kfd=Path("/dev/null"), kfd_processes=Path(scratch, "proc"))
    reading, writing = os.pipe()
    report, told = os.pipe()
    null, cwd = os.open("/dev/null", os.O_RDWR), os.open("/", os.O_PATH)
    words, peer = sealed(command, {}), os.pidfd_open(os.getpid())
    with tree.open(tree.create(1)) as cgroup:
        try:
            supervisor.launch(
                Launch(
                    lease=1,
                    devices=(HookDevice(GPU, 128, 1 << 40, 104, 1, CuSet.parse("")),),
                    cgroup=cgroup.fileno(),
                    home=None,
                    peer=peer,
                    peer_pid=os.getpid(),
                    offered=Offered(words, null, writing, null, cwd, told),
                    uid=0,
                    gid=0,
                    groups=(),
                    inherited=Inherited(
                        0o022,
                        os.getpriority(os.PRIO_PROCESS, 0),
                        0,
                        False,
                        0,
                        frozenset(os.sched_getaffinity(0)),
                        {},
                    ),
                )
            )
        finally:
            for descriptor in (writing, told, null, cwd, words, peer):
                os.close(descriptor)
        with os.fdopen(reading) as output, os.fdopen(report) as end:
            text = output.read()
            end.read()
        while cgroup.populated():
            pass
        cgroup.remove()
    return text


if __name__ == "__main__":
    sys.exit(main())
