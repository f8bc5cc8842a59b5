"""Which options of an engine's are refused beside a lease, and which are not."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpulease.containers import fence, paths, variables
from gpulease.containers.commandline import read
from gpulease.containers.flags import tables_of
from gpulease.containers.wanted import our_flags, wanted
from gpulease.errors import BreaksFence


def judged(words: list[str], engine: str = "docker", environment: dict[str, str] | None = None) -> None:
    """As the wrapper does, before there is a lease."""
    line = read(engine, [*words, "img"], tables_of(engine), our_flags())
    fence.refuse(line, wanted(line.ours, line.creates_only))
    for reason in variables.contradictions(line, environment or {}, {}):
        raise BreaksFence(reason)


REFUSED = [
    ("--privileged", "every device"),
    ("--privileged=true", "every device"),
    ("--privileged=maybe", "every device"),
    ("--device /dev/kfd", "brings its own GPU"),
    ("--device=/dev/dri", "brings its own GPU"),
    ("--device /dev/dri/renderD129", "brings its own GPU"),
    ("--device /dev/dri/card0:/dev/x:rw", "brings its own GPU"),
    ("--device //dev/./dri/../dri", "brings its own GPU"),
    ("--device /dev", "brings its own GPU"),
    ("--device /dev/null,/dev/kfd", "brings its own GPU"),
    ("--device-cgroup-rule 'a *:* rwm'", "opens GPUs"),
    ("--device-cgroup-rule 'c 226:* rwm'", "opens GPUs"),
    ("--device-cgroup-rule 'c 226:128 r'", "opens GPUs"),
    ("--device-cgroup-rule 'c *:* rwm'", "opens GPUs"),
    ("--device-cgroup-rule nonsense", "opens GPUs"),
    ("--gpus all", "--lease-gpus N"),
    ("--gpus device=0", "--lease-gpus N"),
    ("--device amd.com/gpu=all", "another request"),
    ("--device nodeagent.local/lease=0123", "another request"),
    ("--runtime=amd", "gives out GPUs"),
    ("--runtime nvidia", "gives out GPUs"),
    ("--runtime runsc", "gives out GPUs"),
    ("--runtime io.containerd.kata.v2", "gives out GPUs"),
    ("-e AMD_VISIBLE_DEVICES=0", "another runtime"),
    ("-e DOCKER_RESOURCE_GPU=0", "another runtime"),
    ("-e ROCR_VISIBLE_DEVICES=0", "the lease sets it"),
    ("-eHIP_VISIBLE_DEVICES=1", "the lease sets it"),
    ("--env=CUDA_VISIBLE_DEVICES=", "the lease sets it"),
    ("-e HSA_CU_MASK=0:0-7", "the lease sets it"),
    ("-e GPU_MAX_HW_QUEUES=9", "the lease sets it"),
    ("-e GPULEASE_HOOK=/x", "the lease sets it"),
    ("-v /:/host", "all of the node's GPUs"),
    ("-v /:/host:ro", "all of the node's GPUs"),
    ("--volume=/dev:/dev", "all of the node's GPUs"),
    ("-v /dev/dri:/x", "all of the node's GPUs"),
    ("-v /dev/../dev/kfd:/x", "all of the node's GPUs"),
    ("-v /sys:/sys", "settings of the node's GPUs|limits of every lease"),
    ("-v /sys:/sys:ro", "settings of the node's GPUs|limits of every lease"),
    ("-v /sys/fs/cgroup:/x:ro", "limits of every lease"),
    ("-v /sys/class/drm:/x", "settings of the node's GPUs"),
    ("-v /proc:/host/proc", "every process"),
    ("-v /proc/1/root/srv:/x:ro", "another view"),
    ("-v /proc/self/root:/x:ro", "another view"),
    ("-v /run:/run", "the agent's own files"),
    ("-v /run/nodeagent/api.sock:/x", "the agent's own files"),
    ("--mount type=bind,source=/dev,target=/x", "all of the node's GPUs"),
    ("--mount type=bind,src=/dev/dri,dst=/x,readonly", "all of the node's GPUs"),
    ("--mount 'type=bind,\"src=/dev\",dst=/x'", "all of the node's GPUs"),
    ("--mount type=volume,dst=/x,volume-opt=type=none,volume-opt=device=/dev,volume-opt=o=bind", "all of"),
    ("--mount type=glob,src=/dev/dri/*,dst=/x", "all of the node's GPUs"),
    ("-v /srv/x:/etc/ld.so.preload", "choose another place"),
    ("-v data:/etc/gpulease", "choose another place"),
    ("--tmpfs /run/gpulease:size=1m", "choose another place"),
    ("--mount type=tmpfs,destination=/usr/lib/gpulease/x", "choose another place"),
    ("-v data:/dev/dri", "choose another place"),
    ("--volumes-from other", "name the volumes"),
    ("--pid=host", "every process"),
    ("--pid host", "every process"),
    ("--pid=ns:/proc/1/ns/pid", "every process"),
    ("--require ipc=private --ipc=host", "contradict"),
    ("--require ipc=private --ipc container:x", "contradict"),
    ("--cgroup-parent=/mine", "its lease's cgroup"),
    ("--cgroup-parent ''", "its lease's cgroup"),
    ("--cgroups=disabled", "a cgroup of its own"),
    ("--cgroups split", "a cgroup of its own"),
    ("--pod new:x", "in a pod"),
    ("--pod-id-file /x", "in a pod"),
    ("--cap-add=ALL", "undo its limits"),
    ("--cap-add SYS_ADMIN", "undo its limits"),
    ("--cap-add=cap_sys_admin", "undo its limits"),
    ("--cap-add NET_ADMIN,CAP_BPF", "undo its limits"),
    ("--cap-add SYS_RAWIO", "undo its limits"),
    ("--cap-add SYS_MODULE", "undo its limits"),
    ("--require memory=supervised --security-opt seccomp=unconfined", "contradict"),
    ("--restart always", "--lease-restart"),
    ("--restart=on-failure:3", "--lease-restart"),
    ("--restart unless-stopped", "--lease-restart"),
    ("-l gpulease.lease=7", "the lease's"),
    ("--label=gpulease.ticket=x", "the lease's"),
]
PODMANS = ("--cgroups", "--pod")

ALLOWED = [
    "--privileged=false",
    "--device /dev/null",
    "--device /dev/fuse:/dev/fuse:rwm",
    "--device vendor.com/nic=0",
    "--device-cgroup-rule 'c 10:229 rwm'",
    "--device-cgroup-rule 'b 8:0 r'",
    "--runtime=runc",
    "--runtime=io.containerd.runc.v2",
    "--runtime=mine",
    "-e A=1 -e HIP_VISIBLE_DEVICES",
    "-e LD_PRELOAD=/mine.so",
    "-e HIPPO=1",
    "-v /srv:/srv -v data:/data -v /data",
    "-v /dev/shm:/dev/shm -v /dev/hugepages:/dev/hugepages",
    "-v /sys/class/net:/net:ro",
    "-v /proc/cpuinfo:/x:ro",
    "-v /var/run/docker.sock:/var/run/docker.sock",
    "-v ./here:/x",
    "--mount type=bind,source=/srv,target=/x",
    "--mount type=volume,source=data,target=/x",
    "--mount type=tmpfs,target=/run",
    "--tmpfs /run",
    "-v conf:/etc",
    "--pid=container:x",
    "--userns=host",
    "--ipc=host --shm-size=8g",
    "--require ipc=private --ipc=private",
    "--network=host",
    "--cgroupns=host",
    "--cap-add=SYS_PTRACE --cap-add NET_ADMIN",
    "--security-opt seccomp=unconfined",
    "--security-opt apparmor=unconfined",
    "--restart=no",
    "--restart ''",
    "--lease-restart --restart=always",
    "--lease-restart",
    "-l mine=1",
    "--group-add video",
    "--read-only",
    "--init",
]


@pytest.fixture(autouse=True)
def plain_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's own links and devices do not count."""
    monkeypatch.setattr(paths, "gpu_majors", lambda: {226})
    monkeypatch.setattr(fence, "gpu_majors", lambda: {226})


def split(words: str) -> list[str]:
    import shlex

    return ["run", *shlex.split(words)]


@pytest.mark.parametrize(("words", "why"), REFUSED)
def test_refused(words: str, why: str) -> None:
    """What would undo the lease is refused, with the reason or what to do instead."""
    engine = "podman" if words.startswith(PODMANS) else "docker"
    with pytest.raises(BreaksFence, match=why):
        judged(split(words), engine)


@pytest.mark.parametrize("words", ALLOWED)
def test_allowed(words: str) -> None:
    """What a lease can live with is none of our business."""
    judged(split(words))


def test_last_word_counts() -> None:
    """Of an option that is given twice the last value counts, as the engine has it."""
    judged(split("--privileged --privileged=false"))
    with pytest.raises(BreaksFence):
        judged(split("--privileged=false --privileged"))


def test_runtime_before_the_command() -> None:
    """podman takes its runtime before the command, too."""
    with pytest.raises(BreaksFence, match="gives out GPUs"):
        judged(["--runtime=/usr/bin/runsc", "run"], "podman")
    judged(["--runtime=/usr/bin/crun", "run"], "podman")


def test_variables_of_the_environment_and_of_files(tmp_path: Path) -> None:
    """A variable counts wherever its value comes from, a name alone or a file; without one it does not."""
    with pytest.raises(BreaksFence, match="ROCR_VISIBLE_DEVICES"):
        judged(split("-e ROCR_VISIBLE_DEVICES"), environment={"ROCR_VISIBLE_DEVICES": "1"})
    judged(split("-e ROCR_VISIBLE_DEVICES"))
    file = tmp_path / "env"
    file.write_text("# HSA_CU_MASK=1\nA=1\n\n", encoding="utf-8")
    judged(split(f"--env-file {file} --env-file /no/such"))
    file.write_text("A=1\n  HSA_CU_MASK=0:1\n", encoding="utf-8")
    with pytest.raises(BreaksFence, match="HSA_CU_MASK"):
        judged(split(f"--env-file {file}"))


def test_links_and_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU under another name is one: through links, and by the number of its driver."""
    (tmp_path / "link").symlink_to("/dev")
    with pytest.raises(BreaksFence, match="all of the node's GPUs"):
        judged(split(f"-v {tmp_path}/link:/x"))
    with pytest.raises(BreaksFence, match="brings its own"):
        judged(split(f"--device {tmp_path}/link/dri"))
    node: Any = SimpleNamespace(st_mode=stat.S_IFCHR, st_rdev=os.makedev(226, 128))
    monkeypatch.setattr(Path, "stat", lambda *_: node)
    with pytest.raises(BreaksFence, match="brings its own"):
        judged(split("--device /srv/node"))


def test_lease_sets_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else the lease sets is refused once it is known, unless the values agree."""
    line = read(
        "docker", ["run", "-e", "NEW=1", "-e", "LD_PRELOAD=/x", "img"], tables_of("docker"), our_flags()
    )
    assert not [*variables.contradictions(line, {}, {"NEW": "1", "LD_PRELOAD": "/ours"})]
    (reason,) = variables.contradictions(line, {}, {"NEW": None})
    assert reason.startswith("NEW: ")
