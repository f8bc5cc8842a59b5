"""What docker is asked for: what reaches a GPU is refused without a ticket, and an ordinary day passes."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.domain.docker_grounds import Grounds

from .docker_bodies import IMAGE, LEASED, LENT, NODE, TREES, create, judged, request

NULL = {"PathOnHost": "/dev/null", "PathInContainer": "/dev/kfd", "CgroupPermissions": "rwm"}
KFD = {**NULL, "PathOnHost": "/dev/kfd"}
OTHER = "cd" * 32


def volume(**driver: Any) -> dict[str, Any]:
    return {"Type": "volume", "Source": "v9", "Target": "/d", "VolumeOptions": {"DriverConfig": driver}}


def bind(source: str, /, **more: Any) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": "/d", **more}


REFUSED: dict[str, dict[str, Any]] = {
    "privileged": {"Privileged": True},
    "a device": {"Devices": [KFD]},
    "a directory of devices": {"Devices": [{**KFD, "PathOnHost": "/dev/dri"}]},
    "a disk": {"Devices": [{**KFD, "PathOnHost": "/dev/sda"}]},
    "memory": {"Devices": [{**KFD, "PathOnHost": "/dev/mem"}]},
    "a device by a way around": {"Devices": [{**KFD, "PathOnHost": "/dev/fuse/../kfd"}]},
    "a device in another case": {"Devices": [{**NULL, "pathonhost": "/dev/kfd"}]},
    "gpus": {"DeviceRequests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]},
    "cdi": {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["amd.com/gpu=0"]}]},
    "device cgroup rules": {"DeviceCgroupRules": ["c 226:* rwm"]},
    "mknod with rules": {"DeviceCgroupRules": ["a *:* rwm"], "CapAdd": ["MKNOD"]},
    "a lease's cgroup": {"CgroupParent": "/gpulease.slice/gpulease-7.slice"},
    "a lease's slice": {"CgroupParent": "gpulease-7.slice"},
    "another instance's slice": {"CgroupParent": "gpulease_ab12-7.slice"},
    "a job's cgroup": {"CgroupParent": "/system.slice/slurmstepd.scope/job_42"},
    "a cgroup by a way around": {"CgroupParent": "/docker/../x"},
    "a cgroup with an escape": {"CgroupParent": "/gpu\\x6cease.slice"},
    "all capabilities": {"CapAdd": ["ALL"]},
    "sys_admin": {"CapAdd": ["SYS_ADMIN"]},
    "cap_sys_admin": {"CapAdd": ["cap_sys_admin"]},
    "sys_rawio": {"CapAdd": ["SYS_RAWIO"]},
    "sys_module": {"CapAdd": ["SYS_MODULE"]},
    "dac_read_search": {"CapAdd": ["DAC_READ_SEARCH"]},
    "bpf": {"CapAdd": ["BPF"]},
    "a capability with another s": {"CapAdd": ["\u017fYS_ADMIN"]},
    "the node's processes": {"PidMode": "host"},
    "the node's users": {"UsernsMode": "host"},
    "another runtime": {"Runtime": "amd"},
    "runc by another name": {"Runtime": "io.containerd.runc.v2"},
    "a volume driver": {"VolumeDriver": "sshfs"},
    "unmasked": {"MaskedPaths": []},
    "writable kernel files": {"ReadonlyPaths": []},
    "writable cgroups": {"SecurityOpt": ["writable-cgroups=true"]},
    "a seccomp listener": {"SecurityOpt": ['seccomp={"listenerPath":"/run/x"}']},
    "a seccomp listener, escaped": {"SecurityOpt": ['seccomp={"Li\\u0073tenerpath":"/run/x"}']},
    "a seccomp profile that nobody reads": {"SecurityOpt": ["seccomp=x.json"]},
    "a cdi annotation": {"Annotations": {"cdi.k8s.io/x": "amd.com/gpu=0"}},
    "an annotation for the unit": {"Annotations": {"org.systemd.property.Slice": "'gpulease-7.slice'"}},
    "an annotation for crun": {"Annotations": {"run.oci.hooks.stdout": "/x"}},
    "bind of /": {"Binds": ["/:/host"]},
    "bind of / read-only": {"Binds": ["/:/host:ro"]},
    "bind of /dev": {"Binds": ["/dev:/d"]},
    "bind of /dev/dri": {"Binds": ["/dev/dri:/dev/dri"]},
    "bind of /sys read-only": {"Binds": ["/sys:/s:ro"]},
    "bind of /proc/1/root/dev": {"Binds": ["/proc/1/root/dev:/d"]},
    "bind of /./dev": {"Binds": ["/./dev:/d"]},
    "bind of //dev": {"Binds": ["//dev:/d"]},
    "bind of /dev/": {"Binds": ["/dev/:/d"]},
    "bind of /home/../dev": {"Binds": ["/home/../dev:/d"]},
    "bind of /run": {"Binds": ["/run:/r"]},
    "bind of docker's socket": {"Binds": ["/var/run/docker.sock:/s"]},
    "bind of /var": {"Binds": ["/var:/v"]},
    "bind of /etc": {"Binds": ["/etc:/e"]},
    "bind of /etc/docker": {"Binds": ["/etc/docker:/e"]},
    "bind of the agent's state read-only": {"Binds": ["/var/lib/nodeagent:/k:ro"]},
    "bind of what holds the agent's state read-only": {"Mounts": [bind("/var/lib", ReadOnly=True)]},
    "bind of a link to /dev/dri": {"Binds": ["/srv/u/link:/d"]},
    "bind of a link to docker's socket": {"Binds": ["/srv/u//sock:/d"]},
    "bind of a link to docker's settings": {"Binds": ["/srv/u/down:/d"]},
    "bind of another devtmpfs": {"Binds": ["/srv/chroot:/d"]},
    "bind of what has no name": {"Binds": ["./dev:/d"]},
    "bind without a source": {"Binds": [":/d"]},
    "mount of /dev": {"Mounts": [bind("/dev")]},
    "mount of /sys": {"Mounts": [bind("/sys", ReadOnly=True)]},
    "mount of a relative path": {"Mounts": [bind("dev")]},
    "mount of a link": {"Mounts": [bind("/srv/u/link")]},
    "mount with keys in another case": {"Mounts": [bind("/srv/u", source="/dev")]},
    "mount with an unknown key": {"Mounts": [bind("/srv/u", BindOptions={"Idmap": "x"})]},
    "mount of a pipe": {"Mounts": [{"Type": "npipe", "Source": "x", "Target": "/d"}]},
    "mount of a cluster's volume": {"Mounts": [{"Type": "cluster", "Source": "x", "Target": "/d"}]},
    "mount without a type": {"Mounts": [{"Source": "/dev", "Target": "/d"}]},
    "volume with options": {"Mounts": [volume(Name="local", Options={"o": "bind", "device": "/dev"})]},
    "volume of another driver": {"Mounts": [volume(Name="rclone")]},
    "volume with options in another case": {"Mounts": [volume(options={"o": "bind", "device": "/dev"})]},
    "an unknown key": {"Gpus": "all"},
    "an unknown key, empty": {"Gpus": None},
    "a key in another case": {"privileged": True},
    "a text for a list": {"Devices": "x"},
    "a list for a text": {"CgroupParent": ["gpulease-7.slice"]},
    "a number for an object": {"Mounts": [1]},
}


@pytest.mark.parametrize("host", REFUSED.values(), ids=REFUSED)
def test_what_reaches_a_gpu_is_refused(host: dict[str, Any]) -> None:
    """Each way to a GPU, or into a lease, that a create knows is refused."""
    assert create(host)


@pytest.mark.parametrize("name", ["x", "a" * 12, LEASED])
@pytest.mark.parametrize("key", ["PidMode", "IpcMode", "NetworkMode"])
def test_namespaces_of_leased_containers_are_theirs(key: str, name: str) -> None:
    """A name or a part of an id may mean a lease's container, and its whole id does."""
    assert create({key: f"container:{name}"}, LENT)
    assert create({key: f"container:{OTHER}"}, LENT) is None
    assert create({key: f"container:{name}"}, NODE) is None


def test_volumes_of_leased_containers_are_theirs() -> None:
    """What a lease's container has mounted is not taken over."""
    assert create({"VolumesFrom": ["x:ro"]}, LENT)
    assert create({"VolumesFrom": [LEASED]}, LENT)
    assert create({"VolumesFrom": [f"{OTHER}:ro"]}, LENT) is None


@pytest.mark.parametrize(
    "beside",
    [
        {"Privileged": True},
        {"hostConfig": {"Privileged": True}},
        {"Ho\u017ftConfig": {"Privileged": True}},
        {"Volumes": {"/dev:/d": {}}},
        {"HostConfig": []},
        {"Labels": ["gpulease.ticket"]},
    ],
    ids=str,
)
def test_keys_beside_the_host_config_bring_nothing(beside: dict[str, Any]) -> None:
    """dockerd before 26 reads a HostConfig from the top of the body, too."""
    assert judged(request({**IMAGE, **beside}))


PRIVILEGED = b'{"Image":"t:1","Cmd":["x"],"HostConfig":{"Privileged":true}'
SHAPES: dict[str, bytes] = {
    "empty": b"",
    "blank": b"  ",
    "null": b"null",
    "list": b"[]",
    "HostConfig twice": PRIVILEGED + b',"HostConfig":{}}',
    "HostConfig in another case": b'{"Image":"t:1","hostconfig":{"privileged":true}}',
    "HostConfig with a long s": '{"Image":"t:1","Ho\u017ftConfig":{"Privileged":true}}'.encode(),
    "HostConfig in two cases": b'{"Image":"t:1","HostConfig":{},"hostConfig":{"Privileged":true}}',
    "Privileged true then null": b'{"Image":"t:1","HostConfig":{"Privileged":true,"Privileged":null}}',
    "an escaped key": b'{"Image":"t:1","Host\\u0043onfig":{"Privileged":true}}',
    "an escaped key, twice": b'{"Image":"t:1","HostConfig":{"Privileged":true},"Host\\u0043onfig":{}}',
    "two documents": b'{"Image":"t:1"}{"HostConfig":{"Privileged":true}}',
    "a tail": b'{"Image":"t:1"} x',
    "a byte order mark": b'\xef\xbb\xbf{"Image":"t:1"}',
    "no UTF-8": b'{"Image":"t:1","Labels":{"x":"\xff\xfe"}}',
    "half a surrogate": b'{"Image":"t:1","Labels":{"x":"\\ud800"}}',
    "NUL": b'{"Image":"t:1","HostConfig":{"Binds":["/home\\u0000:/d"]}}',
    "NUL in a key": b'{"Image":"t:1","Labels":{"\\u0000":""}}',
    "deep": b'{"Image":"t:1","Healthcheck":' + b"[" * 3000 + b"]" * 3000 + b"}",
    "rather deep": b'{"Image":"t:1","Healthcheck":' + b"[" * 40 + b"]" * 40 + b"}",
    "very deep": b"[" * 1_000_000,
    "a long number": b'{"Image":"t:1","StopTimeout":' + b"1" * 5000 + b"}",
    "not a number": b'{"Image":"t:1","StopTimeout":NaN}',
    "a comment": b'{"Image":"t:1" /* x */}',
    "a line's end in a text": b'{"Image":"t:\n1"}',
}


@pytest.mark.parametrize("body", SHAPES.values(), ids=SHAPES)
def test_a_body_with_two_readings_is_refused(body: bytes) -> None:
    """What Go's reader and another one may read differently is read by neither."""
    assert judged(request(body))


@pytest.mark.parametrize(
    "headers",
    [
        {"content_type": None},
        {"content_type": "text/plain"},
        {"content_type": "application/json; ="},
        {"content_type": "application/json, text/plain"},
        {"content_type": "application/jsonx"},
        {"content_length": None},
        {"content_length": "1"},
        {"content_length": "0"},
    ],
    ids=str,
)
def test_a_body_comes_whole_and_as_json(headers: dict[str, str | None]) -> None:
    """dockerd hands on neither bodies of another type nor those above its limit, and does not say chunked."""
    assert judged(request(IMAGE, **headers))


@pytest.mark.parametrize(
    "kind", ["application/json", "APPLICATION/JSON", "application/json; charset=utf-8"], ids=str
)
def test_json_has_a_few_spellings(kind: str) -> None:
    """Clients that say a character set pass."""
    assert judged(request(IMAGE, content_type=kind)) is None


ORDINARY: dict[str, dict[str, Any]] = {
    "nothing": {},
    "empty values": {"Privileged": False, "Devices": [], "Binds": None, "CgroupParent": "", "CapAdd": None},
    "a bind": {"Binds": ["/srv/u/data:/data", "/srv/x:/x:ro", "cache:/c"]},
    "the time zone": {"Binds": ["/etc/localtime:/etc/localtime:ro", "/etc:/e:ro"]},
    "shared memory": {"Binds": ["/dev/shm:/dev/shm"], "IpcMode": "host"},
    "mounts": {
        "Mounts": [
            bind("/srv/u", BindOptions={"Propagation": "rslave"}),
            {"Type": "volume", "Source": "v", "Target": "/v", "VolumeOptions": {"Labels": {"a": "b"}}},
            {"Type": "tmpfs", "Target": "/t", "TmpfsOptions": {"SizeBytes": 1, "Mode": 448}},
            {"Type": "image", "Source": "t:1", "Target": "/i"},
        ]
    },
    "the network": {
        "NetworkMode": "host",
        "PortBindings": {"80/tcp": [{"HostPort": "8080"}]},
        "CapAdd": ["NET_ADMIN"],
    },
    "a debugger": {"CapAdd": ["SYS_PTRACE"], "SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined"]},
    "a seccomp profile": {"SecurityOpt": ['seccomp={"defaultAction":"SCMP_ACT_ALLOW"}', "no-new-privileges"]},
    "harmless devices": {
        "Devices": [{**NULL, "PathOnHost": name} for name in ("/dev/fuse", "/dev/net/tun", "/dev/snd")]
    },
    "sysctls": {
        "Sysctls": {"net.core.somaxconn": "1024"},
        "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}],
    },
    "annotations": {"Annotations": {"org.example.team": "a"}},
    "a cgroup": {"CgroupParent": "builds.slice", "Runtime": "runc"},
    "limits": {"Memory": 1 << 30, "NanoCpus": 2, "RestartPolicy": {"Name": "always", "MaximumRetryCount": 0}},
}


@pytest.mark.parametrize("host", ORDINARY.values(), ids=ORDINARY)
def test_an_ordinary_container_passes(host: dict[str, Any]) -> None:
    """What people run every day needs no ticket, also while leases run in containers."""
    assert create(host, LENT) is None


@pytest.mark.parametrize(
    ("uri", "body"),
    [
        ("/containers/c1/update", {"Devices": [KFD]}),
        ("/containers/c1/update", {"DeviceCgroupRules": ["a *:* rwm"]}),
        ("/containers/c1/update", {"CgroupParent": "gpulease-7.slice"}),
        ("/containers/c1/update", {"devices": [KFD]}),
        ("/containers/c1/update", b""),
        ("/containers/c1/exec", {"Cmd": ["x"], "Privileged": True}),
        ("/containers/c1/exec", {"Cmd": ["x"], "privileged": True}),
        ("/containers/c1/exec", b'{"Cmd":["x"],"Privileged":true,"Privileged":null}'),
        ("/containers/c1/exec", b""),
        ("/containers/c1/start", {"Privileged": True, "Binds": ["/dev:/d"]}),
        ("/containers/c1/start", {"Memory": 1}),
        ("/v1.23/containers/c1/start", {}),
        ("/containers/c1/start?checkpoint=x", {}),
        ("/volumes/create", {"Name": "v1", "DriverOpts": {"type": "none", "o": "bind", "device": "/dev"}}),
        ("/volumes/create", {"Name": "v1", "driveropts": {"o": "bind"}}),
        ("/volumes/create", {"Name": "v1", "Driver": "rclone"}),
        ("/volumes/create", {"Name": "v1", "ClusterVolumeSpec": {"Group": "x"}}),
        ("/volumes/create", b""),
        (f"/containers/c1/rename?name={LEASED}", b""),
        (f"/containers/create?name={LEASED}", IMAGE),
    ],
    ids=str,
)
def test_the_other_judged_calls_bring_nothing(uri: str, body: Any) -> None:
    """Neither a change, a command, a start nor a volume reaches what a create may not."""
    assert judged(request(body, uri))


def test_a_start_whose_body_is_not_handed_on_is_refused() -> None:
    """A length without a body is a body of another type."""
    assert judged(request(b"", "/containers/c1/start", content_type="text/plain", content_length="64"))


@pytest.mark.parametrize(
    ("uri", "body"),
    [
        (
            "/containers/c1/update",
            {"Memory": 1 << 30, "Devices": [], "CgroupParent": "", "RestartPolicy": {"Name": "no"}},
        ),
        ("/containers/c1/exec", {"Cmd": ["sh"], "Privileged": False, "Tty": True, "Env": None}),
        ("/containers/c1/start", b""),
        ("/containers/c1/start", {}),
        ("/containers/c1/rename?name=web", b""),
        ("/volumes/create", {"Name": "v", "Driver": "local", "DriverOpts": {}, "Labels": {"a": "b"}}),
        ("/build?t=x&networkmode=default&cgroupparent=&version=1", b""),
    ],
    ids=str,
)
def test_ordinary_changes_and_commands_pass(uri: str, body: Any) -> None:
    """What docker's own client sends for update, exec, start, rename, volumes and builds."""
    assert judged(request(body, uri), LENT) is None


@pytest.mark.parametrize(
    "uri",
    [
        "/build?cgroupparent=gpulease-7.slice",
        "/build?cgroup%70arent=gpulease-7.slice",
        "/build?cgroupparent=&cgroupparent=/gpulease.slice/gpulease-7.slice",
        "/build?networkmode=container:x",
        "/build?version=2",
    ],
)
def test_a_build_stays_outside_leases(uri: str) -> None:
    """The options of a build lead into no lease, and BuildKit's are not readable."""
    assert judged(request(b"", uri), LENT)


def test_options_are_not_hidden_in_a_form() -> None:
    """dockerd reads options from a form, too, and does not hand it on."""
    assert judged(request(b"", "/build", content_type="application/x-www-form-urlencoded"))
    hidden = {"content_type": "text/plain", "content_length": None}  # by the second of two, and in chunks
    assert judged(request(b"", "/containers/c1/rename?name=web", **hidden))


def test_a_site_may_let_buildkit_pass() -> None:
    """Where the daemon gives builds no devices, the site says so."""
    grounds = Grounds(TREES, buildkit=True)
    for uri in ("/grpc", "/session", "/build?version=2"):
        assert judged(request(b"", uri), grounds) is None
        assert judged(request(b"", uri), NODE)
