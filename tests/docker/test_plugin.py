"""A real dockerd behind the plugin: ways to a GPU that other judges let through, and an ordinary day."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Lab
from .guarded import CONTAINER, Answer, Guarded, guarded_host
from .host import SECONDS
from .kinds import DOCKER, NEWER_DOCKER, Kind, params

pytestmark = pytest.mark.docker

TOKEN = "0123456789abcdef" * 2
NULL = {"PathOnHost": "/dev/null", "PathInContainer": "/dev/kfd", "CgroupPermissions": "rwm"}
DEVICE = {**NULL, "PathOnHost": "/dev/tty"}
PRIVILEGED = {**CONTAINER, "HostConfig": {"Privileged": True}}
BIG = {"Labels": {"x": "A" * 1_100_000}}
OPTIONS = {"type": "none", "o": "bind", "device": "/dev"}
ABSOLUTE = "http://docker/containers/create"


DAY = """
    stats --no-stream site
    logs site
    diff site
    port site
    update --memory=128m --memory-swap=-1 site
    commit site copied
    pause site
    unpause site
    restart -t0 site
    stop -t0 site
    start site
    kill site
    wait site
    rm site
    network ls
    volume ls
    volume create more
    volume rm more cache
    images
    tag copied tagged
    save -o {archive} copied
    rmi tagged copied
    load -i {archive}
    rmi copied
    info
    version
    system df
    container prune --force
"""
COMPOSE = """\
name: day
services:
  web:
    build: {context: ., network: none}
    command: sh -c "cat /made; sleep 60"
    network_mode: none
    volumes: ["cache:/cache", ".:/here:ro"]
    deploy: {resources: {limits: {memory: 64m}}}
    ulimits: {nofile: 1024}
  side:
    image: busybox
    command: sleep 60
    network_mode: "service:web"
    pid: "service:web"
    depends_on: [web]
volumes:
  cache: {}
"""


@pytest.fixture(scope="session", params=params(DOCKER, NEWER_DOCKER), ids=lambda kind: kind.name)
def shared_guarded(request: pytest.FixtureRequest, lab: Lab) -> Iterator[Guarded]:
    """A dockerd of each age that asks the plugin, with one small image. No agent runs."""
    kind: Kind = request.param
    if reason := kind.missing():
        pytest.skip(reason)
    with guarded_host(kind) as guarded:
        lab.load(guarded.host, "busybox")
        yield guarded


@pytest.fixture
def guarded(shared_guarded: Guarded) -> Iterator[Guarded]:
    """No container and no ticket, before and after."""
    yield shared_guarded
    shared_guarded.host.remove_containers()
    for file in shared_guarded.host.path("/run/nodeagent/tickets").glob("*/*"):
        file.unlink()


BODIES: dict[str, Any] = {
    "privileged": PRIVILEGED,
    "1.1 MB": {**PRIVILEGED, **BIG},
    "4 MiB less one byte": json.dumps(PRIVILEGED).encode().ljust(4194303),
    "4 MiB": json.dumps(PRIVILEGED).encode().ljust(4194304),
    "17 MB": json.dumps(PRIVILEGED).encode().ljust(17_000_000),
    "a blank tail of 1 MiB": json.dumps(PRIVILEGED).encode() + b" " * 1048576,
    "keys in lower case": {**CONTAINER, "hostconfig": {"privileged": True}},
    "a long s": json.dumps(
        {**CONTAINER, "Ho\u017ftConfig": {"Privileged": True}}, ensure_ascii=False
    ).encode(),
    "HostConfig twice": b'{"Image":"busybox","HostConfig":{"Privileged":true},"HostConfig":{}}',
    "HostConfig in two cases": b'{"Image":"busybox","HostConfig":{},"hostConfig":{"Privileged":true}}',
    "privileged, then null": b'{"Image":"busybox","HostConfig":{"Privileged":true,"Privileged":null}}',
    "privileged beside": {**CONTAINER, "Privileged": True},
    "an escaped key": b'{"Image":"busybox","Host\\u0043onfig":{"Privileged":true}}',
    "no UTF-8": b'{"Image":"busybox","Labels":{"x":"\xff"},"HostConfig":{"Privileged":true}}',
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(PRIVILEGED).encode(),
    "deep": b'{"Image":"busybox","HostConfig":{"Privileged":true},"zz":' + b"[" * 3000 + b"]" * 3000 + b"}",
    "two documents": b'{"Image":"busybox"}{"HostConfig":{"Privileged":true}}',
}
HOSTS: dict[str, dict[str, Any]] = {
    "devices": {"Devices": [DEVICE]},
    "device rules": {"DeviceCgroupRules": ["c 226:* rwm"]},
    "bind of /": {"Binds": ["/:/host"]},
    "bind of /proc/1/root/dev": {"Binds": ["/proc/1/root/dev:/d"]},
    "bind of /./dev": {"Binds": ["/./dev:/d"]},
    "bind of //dev": {"Binds": ["//dev:/d"]},
    "bind of /run": {"Binds": ["/run:/r"]},
    "bind of docker's socket": {"Binds": ["/var/run/docker.sock:/s"]},
    "a lease's cgroup": {"CgroupParent": "/gpulease.slice/gpulease-7.slice"},
    "a volume's options": {
        "Mounts": [
            {
                "Type": "volume",
                "Source": "v9",
                "Target": "/d",
                "VolumeOptions": {"DriverConfig": {"Name": "local", "Options": OPTIONS}},
            }
        ]
    },
    "another runtime": {"Runtime": "io.containerd.runc.v2"},
    "cdi by annotation": {"Annotations": {"cdi.k8s.io/x": "amd.com/gpu=0"}},
    "all capabilities": {"CapAdd": ["ALL"]},
    "the node's processes": {"PidMode": "host"},
    "devices by request": {"DeviceRequests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]},
    "cdi": {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["amd.com/gpu=0"]}]},
}
HEADS: dict[str, tuple[str, ...]] = {
    "a character set that is none": ("Content-Type: application/json; =",),
    "text": ("Content-Type: text/plain",),
    "no type": ("X: y",),
    "two types": ("Content-Type: text/plain", "Content-Type: application/json"),
    "two types, json first": ("Content-Type: application/json", "Content-Type: text/plain"),
    "upper case": ("Content-Type: APPLICATION/JSON",),
    "a character set": ("Content-Type: application/json; charset=utf-8",),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_no_body_makes_a_privileged_container(guarded: Guarded, body: Any) -> None:
    """However it is written, also where dockerd would read it in another way."""
    _nothing_came(guarded, guarded.call("POST", "/containers/create", body))


@pytest.mark.parametrize("body", [PRIVILEGED, {**PRIVILEGED, **BIG}], ids=["small", "large"])
def test_chunks_hide_nothing(guarded: Guarded, body: Any) -> None:
    """dockerd does not say that a body came in chunks: one without a length is refused."""
    _nothing_came(guarded, guarded.call("POST", "/containers/create", body, chunked=True))


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_no_content_type_hides_a_body(guarded: Guarded, head: tuple[str, ...]) -> None:
    """A body that dockerd does not hand on is refused."""
    _nothing_came(guarded, guarded.call("POST", "/containers/create", PRIVILEGED, *head))


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
def test_no_host_config_reaches_a_gpu(guarded: Guarded, host: dict[str, Any]) -> None:
    """Nor a lease."""
    _nothing_came(guarded, guarded.create(host))


@pytest.mark.parametrize(
    "path",
    [
        "/v1.24/containers/create",
        "//containers/create",
        "/./containers/create",
        "/containers/cr%65ate",
        ABSOLUTE,
    ],
)
def test_no_spelling_of_the_path_hides_a_create(guarded: Guarded, path: str) -> None:
    """What is judged is what dockerd's router takes it for."""
    answer = guarded.call("POST", path, PRIVILEGED)
    assert answer.refused or answer.status in (301, 400), answer  # dockerd sends away, or knows no such API
    assert guarded.host.containers() == []


def _nothing_came(guarded: Guarded, answer: Answer) -> None:
    assert answer.refused or _too_large(answer), answer
    assert guarded.host.containers() == []


def _too_large(answer: Answer) -> bool:
    """Newer ones refuse by themselves what they do not hand on."""
    return answer.status == 500 and "request body too large" in str(answer.body)


def test_a_link_to_devices_is_seen_through(guarded: Guarded) -> None:
    """Where it leads on the node, not what it is called."""
    link = guarded.host.directory / "innocent"
    link.symlink_to("/dev")
    assert guarded.create({"Binds": [f"{link}:/d"]}).refused
    link.unlink()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/containers/c1/update", {"Devices": [DEVICE], "DeviceCgroupRules": ["a *:* rwm"]}),
        ("/containers/c1/exec", {"Cmd": ["x"], "privileged": True}),
        ("/containers/c1/exec", {"Cmd": ["x"], "Privileged": True}),
        ("/containers/c1/start", {"Privileged": True, "Binds": ["/dev:/d"]}),
        ("/v1.23/containers/c1/start", {"Privileged": True, "Binds": ["/dev:/d"]}),
        ("/volumes/create", {"Name": "v1", "DriverOpts": OPTIONS}),
        ("/grpc", None),
        ("/session", None),
        ("/swarm/init", {"ListenAddr": "127.0.0.1:23777", "AdvertiseAddr": "127.0.0.1"}),
        ("/services/create", {"Name": "s"}),
        ("/plugins/pull?remote=x", []),
        ("/build?cgroupparent=/gpulease.slice/gpulease-7.slice", b""),
    ],
    ids=str,
)
def test_other_calls_lead_to_no_gpu(guarded: Guarded, path: str, body: Any) -> None:
    """They are refused by the plugin, with its reason."""
    assert guarded.call("POST", "/containers/create?name=c1", CONTAINER).status == 201
    assert guarded.call("POST", path, body).refused


def test_a_start_with_chunks_of_an_old_api_is_refused(guarded: Guarded) -> None:
    """Its HostConfig would replace the one that was judged."""
    assert guarded.call("POST", "/containers/create?name=c1", CONTAINER).status == 201
    body = json.dumps({"Privileged": True}).encode().ljust(5_000_000)
    answer = guarded.call("POST", "/v1.23/containers/c1/start", body, chunked=True)
    assert answer.refused or _too_large(answer), answer


def test_a_second_content_type_hides_no_name(guarded: Guarded) -> None:
    """dockerd reads the form of the first one, and hands on the second: a name like an id could come so."""
    assert guarded.call("POST", "/containers/create?name=c1", CONTAINER).status == 201
    kinds = "Content-Type: application/x-www-form-urlencoded", "Content-Type: text/plain"
    body = f"name={'ab' * 32}".encode()
    assert guarded.call("POST", "/containers/c1/rename", body, *kinds, chunked=True).refused
    assert guarded.call("POST", "/containers/c1/rename", body, *kinds).refused


def test_a_user_of_docker_reads_why(guarded: Guarded) -> None:
    """docker's own client prints the reason, to a user who is in docker's group only."""
    done = guarded.host.client("run", "--rm", "--privileged", "busybox", "true", user="alice")
    assert done.returncode == 125
    assert "authorization denied by plugin nodeagent: a privileged container reaches every GPU" in done.stderr
    assert "gpulease docker run" in done.stderr
    assert "refused: a privileged container" in guarded.said()


def leased(guarded: Guarded) -> tuple[dict[str, Any], dict[str, str], Path]:
    """The HostConfig and labels of a lease's container, and the file of its ticket."""
    source = guarded.host.directory / "limits"
    source.write_text("held")
    mounts = [[str(source), "/etc/gpulease/limits", True]]
    file = guarded.lend(
        TOKEN, devices=["/dev/tty"], mounts=mounts, cgroup_parents=["/gpulease.slice/gpulease-7.slice"]
    )
    host = {
        "Devices": [DEVICE],
        "Mounts": [
            {"Type": "bind", "Source": str(source), "Target": "/etc/gpulease/limits", "ReadOnly": True}
        ],
        "CgroupParent": "/gpulease.slice/gpulease-7.slice",
    }
    return host, {"gpulease.lease": "7", "gpulease.ticket": TOKEN}, file


def test_a_lease_gets_its_devices_once(guarded: Guarded) -> None:
    """The container has them, is bound by its id, and a second one with the same labels is refused."""
    host, labels, file = leased(guarded)
    answer = guarded.create(host, Labels=labels)
    assert answer.status == 201, answer
    made = guarded.host.inspect(answer.body["Id"])["HostConfig"]
    assert [device["PathOnHost"] for device in made["Devices"]] == ["/dev/tty"]
    assert json.loads(file.with_suffix(".bound").read_text()) == {"container": answer.body["Id"]}
    again = guarded.create(host, Labels=labels)
    assert again.refused and "spent" in str(again.body)
    assert guarded.create({"PidMode": f"container:{answer.body['Id'][:12]}"}).refused


def test_an_image_that_is_missing_costs_no_ticket(guarded: Guarded) -> None:
    """The client asks again once it has pulled it."""
    host, labels, _ = leased(guarded)
    assert guarded.create(host, Labels=labels, Image="none:1").status == 404
    assert guarded.create(host, Labels=labels).status == 201


def test_an_ended_leases_ticket_gives_nothing(guarded: Guarded) -> None:
    """Nor does one that is guessed, or a label alone."""
    host, labels, file = leased(guarded)
    file.unlink()
    assert guarded.create(host, Labels=labels).refused
    assert guarded.create({}, Labels={"gpulease.lease": "7"}).refused


def test_an_ordinary_day_passes(guarded: Guarded) -> None:
    """docker's own client: ps, run, exec, cp, logs, commit, volumes, save and load, update. No agent runs."""
    host = guarded.host
    data = host.directory / "data"
    data.mkdir(exist_ok=True)
    (data / "file").write_text("here")
    run = ("run", "--network=none")
    volume = ("-v", f"{data}:/data:ro", "-v", "cache:/cache", "--tmpfs=/t", "--label=a=b", "--init")
    assert host.said(*run, "--rm", *volume, "busybox", "cat", "/data/file") == "here"
    assert host.said(*run, "-d", "--name=web", "--memory=64m", "busybox", "sleep", "60")
    assert "web" in host.said("ps")
    assert host.said("exec", "-e", "A=b", "-w", "/", "web", "env").count("A=b") == 1
    host.said("cp", str(data / "file"), "web:/tmp/file")
    if not host.kind.chroot:  # where dockerd copies into a container that it does not see itself
        assert host.said("exec", "web", "cat", "/tmp/file") == "here"
        host.said("cp", "web:/tmp/file", str(data / "copy"))
    host.said("rename", "web", "site")
    for line in DAY.format(archive=data / "image.tar").strip().splitlines():
        host.said(*line.split())


def test_images_are_built(guarded: Guarded) -> None:
    """By the builder whose calls can be read: BuildKit's are refused with what to do."""
    directory = guarded.host.directory / "build"
    directory.mkdir(exist_ok=True)
    (directory / "Dockerfile").write_text("FROM busybox\nCOPY Dockerfile /\nRUN cat /Dockerfile >/made\n")
    build = ("build", "--network=none", "-t", "built", str(directory))
    guarded.host.said(*build, env={"DOCKER_BUILDKIT": "0"})
    assert "FROM busybox" in guarded.host.said("run", "--rm", "--network=none", "built", "cat", "/made")
    guarded.host.said("rmi", "built")


@pytest.mark.parametrize("shared_guarded", [NEWER_DOCKER], indirect=True, ids=["newer-docker"])
def test_a_compose_file_passes(guarded: Guarded) -> None:
    """Up with a build, volumes and shared namespaces, logs, and down, while a lease has a container."""
    host, (config, labels, _) = guarded.host, leased(guarded)
    directory = host.directory / "compose"
    directory.mkdir(exist_ok=True)
    (directory / "Dockerfile").write_text("FROM busybox\nRUN echo built >/made\n")
    (directory / "compose.yaml").write_text(COMPOSE)
    words = ("compose", "--project-directory", str(directory))
    old = {"env": {"DOCKER_BUILDKIT": "0"}}
    assert guarded.create(config, Labels=labels).status == 201
    host.said(*words, "up", "--detach", "--build", **old)
    host.until(lambda: "built" in host.said(*words, "logs", "web"))
    assert "web" in host.said(*words, "ps")
    host.said(*words, "exec", "web", "true")
    host.said(*words, "up", "--detach", "--force-recreate", **old)
    host.said(*words, "down", "--volumes", "--timeout=0")


def test_a_plugin_that_was_killed_starts_again(guarded: Guarded) -> None:
    """It takes over its own socket, and what was bound and spent stays so."""
    host, labels, _ = leased(guarded)
    assert guarded.create(host, Labels=labels).status == 201
    guarded.stop(signal.SIGKILL)
    guarded.start()
    assert "spent" in str(guarded.create(host, Labels=labels).body)


def test_docker_waits_for_a_plugin_that_starts(guarded: Guarded) -> None:
    """A call that came meanwhile is judged then, not refused."""
    guarded.stop()
    waiting = guarded.host.start("docker", "ps", "-q", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    guarded.start()
    assert (waiting.wait(SECONDS), waiting.communicate()[1]) == (0, "")


@pytest.mark.slow
def test_a_silent_plugin_stops_docker(guarded: Guarded) -> None:
    """dockerd asks nobody else: that is why the socket is systemd's, and removal refuses."""
    guarded.stop()
    try:
        assert guarded.host.client("ps", seconds=120).returncode != 0
    finally:
        guarded.start()
    assert guarded.host.client("ps").returncode == 0
