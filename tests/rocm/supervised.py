"""Runs a command under the real supervisor with a lease of MIB on the first GPU; for use inside the fake.

python -m tests.rocm.supervised MIB COMMAND…
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from pathlib import Path

from nodeagent.adapters.cgroup import CgroupTree, nest_below
from nodeagent.adapters.cgroup_mount import find_mount
from nodeagent.adapters.hook_format import HookDevice
from nodeagent.adapters.inheritance import Inherited
from nodeagent.adapters.supervisor import Descriptors, Launch, Supervisor
from nodeagent.domain.cuset import CuSet
from tests.fakekfd.topology import FIRST_MINOR, MODELS, gpus

LEASE = 7
CUS = "8-15"
CANNOT = 77  # exit code, with the reason on stderr
INHERITED = {
    "umask": 0o022,
    "nice": 0,
    "oom_score_adj": 0,
    "no_new_privileges": False,
    "ignored_signals": 0,
    "limits": {},
}


def main(mib: int, command: list[str]) -> int:
    """The command's exit code."""
    mount = find_mount()
    supervisor = Supervisor()
    tree = CgroupTree(mount, f"gpulease_test{secrets.token_hex(6)}.slice") if mount else None
    if why := supervisor.unavailable() or (tree.writable() if tree else "needs cgroup2"):
        print(why, file=sys.stderr)
        return CANNOT
    assert tree is not None
    gpu = gpus(MODELS["mi210"], 1)[0]
    device = HookDevice(gpu.gpu_id, FIRST_MINOR, mib << 20, MODELS["mi210"].cus, 1, CuSet.parse(CUS))
    report, report_end = os.pipe()
    with tree.open(tree.create(LEASE, nest_below(tree.cgroup_of(os.getpid())))) as cgroup:
        supervisor.launch(
            Launch(
                lease=LEASE,
                devices=(device,),
                cgroup=cgroup.fileno(),
                home=None,
                argv=tuple(command),
                environment=dict(os.environ),
                descriptors=Descriptors(*map(os.dup, (0, 1, 2)), os.open("/", os.O_PATH), report_end),
                uid=0,
                gid=0,
                groups=(),
                inherited=Inherited(**INHERITED, cpus=frozenset(os.sched_getaffinity(0))),
            )
        )
        os.close(report_end)
        answer = os.read(report, 64).decode().split()
        cgroup.kill()
        while cgroup.populated():
            time.sleep(0.01)
        cgroup.remove()
    Path(f"{tree.mount}{tree.instance}").rmdir()
    return os.waitstatus_to_exitcode(int(answer[1])) & 0xFF if answer else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
