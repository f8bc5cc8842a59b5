"""Every setting reaches what acts by it. What that does with it is held by the tests of its own."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

from nodeagent import wiring
from nodeagent.adapters.discovery import discover
from nodeagent.adapters.drm import PCI
from nodeagent.config import Config
from nodeagent.domain.endpoint import Endpoint
from nodeagent.domain.guarantee import Memory, Requirement
from nodeagent.domain.lease import HolderKind
from nodeagent.domain.request import Policy, Priority, Shape, SliceRequest
from nodeagent.wiring.node import Node
from nodeagent.wiring.reload import server_settings
from nodeagent.wiring.web import build_web

STAFF, USER = 4321, 4322  # a group, and a user outside it
CPX = "partitions.modes = { MI300X = 'cpx' }"
# A line of the settings' file, which object of the agent has it then, and as what.
ROWS = [
    ("defaults.shared_cu = 40", "Placer._shared_cu_percent", 40),
    ("defaults.shared_cu = 40", "Queue._shared_cu_percent", 40),
    ("defaults.ttl_seconds = 77", "AnchorLimits.ttl", 77),
    ("defaults.max_ttl_seconds = 7000", "AnchorLimits.max_ttl", 7000),
    ("defaults.start_seconds = 7", "AnchorLimits.start", 7),
    ("devices.include_apus = true", "Scanner._include_apus", True),
    ("devices.reserve_percent = 7", "Scanner._reserve_percent", 7),
    ("devices.shares = { gfx942 = 7 }", "DeviceRules.shares", {"gfx942": 7}),
    ("devices.reserved = { '*' = ['user:4322', 'group:4321'] }", "Reserved.uids", frozenset({4322})),
    ("devices.on_uncorrectable = 'report'", "HealthPolicy.refuse_uncorrectable", False),
    ("devices.on_link_degraded = 'refuse'", "HealthPolicy.refuse_degraded", True),
    ("devices.owner = 'local'", "Ownership._setting", "local"),
    ("devices.gate = 'acl'", "GatePolicy.enabled", True),
    ("devices.gate_exempt_uids = [7]", "GatePolicy.exempt", frozenset({7})),
    ("devices.gate_on_leftover = 'kill'", "GatePolicy.kill", True),
    (f"{CPX}\npartitions.apply_at_start = true", "Partitioning._chosen", {"MI300X": "cpx"}),
    ("guarantee.memory = 'hook'", "Requirement.memory", Memory.HOOK),
    ("hook.enabled = false", "HookMeans._files", None),
    ("cdi.enabled = false", "CdiDoor._files", None),
    ("cdi.directory = '/etc/cdi'", "CdiFiles._directory", Path("/etc/cdi")),
    ("watch.seconds = 7", "Watch._seconds", 7),
    ("watch.on_overuse = 'kill'", "WatchPolicy.kill", True),
    ("watch.tolerance_percent = 7", "Overuse._tolerance_percent", 7),
    ("watch.stalled_seconds = 7", "WatchPolicy.stalled_seconds", 7),
    ("idle.after_seconds = 7", "IdlePolicy.after_seconds", 7),
    ("idle.action = 'release'", "IdlePolicy.release", True),
    ("idle.warn_seconds = 7", "IdlePolicy.warn_seconds", 7),
    ("idle.exempt = ['docker']", "IdlePolicy.exempt", frozenset({HolderKind.DOCKER})),
    ("closure.enabled = false", "KernelTier._enabled", False),
    ("closure.exempt = ['/a']", "Closing._exempt", ("/a",)),
    ("closure.probe = '/bin/a'", "SelfTest._probe", ("/bin/a",)),
    ("limits.live_leases = 7", "QuotaLimits.live_leases", 7),
    ("quota = [{ user = 7, leases = 1 }]", "Subject.user", 7),
    ("quota = [{ user = '*', leases = 1 }]", "Subject.each", True),
    ("quota = [{ user = '*', not_user = [7], leases = 1 }]", "Subject.but", frozenset({7})),
    ("quota = [{ group = 7, leases = 1 }]", "Subject.group", 7),
    ("quota = [{ account = 'Physics', leases = 1 }]", "Subject.account", "physics"),
    ("quota = [{ kind = 'docker', leases = 1 }]", "Subject.kind", HolderKind.DOCKER),
    ("quota = [{ user = '*', leases = 7 }]", "Limits.leases", 7),
    ("quota = [{ user = '*', vram = '7G' }]", "Limits.vram_bytes", 7 << 30),
    ("quota = [{ user = '*', cus = 7 }]", "Limits.cus", 7),
    ("quota = [{ user = '*', queue_slots = 7 }]", "Limits.queue_slots", 7),
    ("classes.a.users = [7]", "Class.users", frozenset({7})),
    ("classes.a.groups = [7]", "Class.groups", frozenset({7})),
    ("classes.a.kinds = ['docker']", "Class.kinds", frozenset({HolderKind.DOCKER})),
    ("classes.a.default = true", "Class.default", True),
    ("classes.a.vram = '7G'", "Class.each", SliceRequest(vram_bytes=7 << 30)),
    ("classes.a.cu = '7%'", "Class.each", SliceRequest(cu_percent=7)),
    (
        "classes.a = { cu = 'shared', vram = '7%' }",
        "Class.each",
        SliceRequest(cu_shared=True, vram_percent=7),
    ),
    ("classes.a.queue_slots = 7", "Class.each", SliceRequest(queue_slots=7)),
    ("classes.a.shape = 'exact'", "Class.each", SliceRequest(shape=Shape.EXACT)),
    ("classes.a.placement = 'spread'", "Class.placement", Policy.SPREAD),
    ("classes.a.ttl_seconds = 7", "Class.ttl_seconds", 7),
    ("classes.a.max_ttl_seconds = 7", "Class.max_ttl_seconds", 7),
    ("classes.a.max_vram = '7G'", "Limits.vram_bytes", 7 << 30),
    ("classes.a.max_cus = 7", "Limits.cus", 7),
    ("classes.a.max_queue_slots = 7", "Limits.queue_slots", 7),
    ("classes.a.priority = 'high'", "Class.priority", Priority.HIGH),
    ("classes.a.require.memory = 'hook'", "Class.require", Requirement(memory=Memory.HOOK)),
    ("limits.priority = 'high'", "Classes._priority", Priority.HIGH),
    ("limits.queued_leases = 7", "QuotaLimits.queued_leases", 7),
    ("limits.grants_per_second = 7", "TokenBuckets._rate", 7),
    ("limits.keep_seconds = 7", "Allowance._most_ns", 7_000_000_000),
    ("limits.queue_priority = 'low'", "AgentParts.queue_priority", Priority.LOW),
    ("mode.slurm = 'observe'", "Modes.observed", (HolderKind.SLURM,)),
    ("mode.docker = 'observe'", "Modes.observed", (HolderKind.DOCKER,)),
    ("mode.process = 'observe'", "Modes.observed", (HolderKind.PROCESS,)),
    ("mode.client = 'observe'", "Modes.observed", (HolderKind.CLIENT,)),
    ("privacy.leases = 'open'", "ApiSettings.leases_open", True),
    ("release.timeout_seconds = 7", "Releaser._timeout", 7),
    ("release.retry_seconds = 7", "Periods.quarantine", 7),
    ("release.interrupt_seconds = 7", "Grace.interrupt_seconds", 7),
    ("release.interrupt_seconds = 7", "Dock.grace_seconds", 12),
    ("release.grace_seconds = 7", "Grace.terminate_seconds", 7),
    ("release.grace_seconds = 7", "Dock.grace_seconds", 7),
    ("release.on_lost = 'SIGHUP'", "Grace.on_lost", signal.SIGHUP),
    ("release.leak_tolerance_bytes = 7", "VramMeans._tolerance", 7),
    ("release.leak_tolerance_bytes = 7", "VramEffect._tolerance", 7),
    ("release.leak_tolerance_bytes = 7", "Hourly._tolerance", 7),
    ("release.ipc = false", "IpcMeans._why_not", "turned off by release.ipc"),
    ("slurm.enabled = false", "Slurm._parts", None),
    ("slurm.gres_conf = '/a'", "SlurmConf._gres_conf", Path("/a")),
    ("slurm.request_from = 'extra'", "Prolog._words", "extra"),
    ("slurm.spool = '/a'", "SpoolFiles._directory", Path("/a")),
    ("docker.enabled = false", "Anchors._bearers", None),
    ("docker.socket = '/a'", "EngineSocket.path", Path("/a")),
    ("docker.podman_socket = '/a'", "EngineSocket.path", Path("/a")),
    ("docker.on_ended = 'report'", "Stopping._stops", False),
    ("docker.on_foreign = 'stop'", "ForeignContainers._seconds", 5),
    ("metrics.leases = true", "AgentCollector._leases", True),
    ("events.days = 7", "Periods.event_seconds", 7 * 86_400),
    ("events.megabytes = 7", "Periods.event_bytes", 7 << 20),
]


def parts(root: object) -> Iterator[object]:
    """Everything of ours that an agent is made of, closures included; not its settings themselves."""
    seen, left = {id(root)}, [root]
    while left:
        one = left.pop()
        if isinstance(one, type | ModuleType | BaseModel):
            continue
        if type(one).__module__.startswith("nodeagent."):
            yield one
        inner = (
            [one.__closure__, one.__defaults__] if isinstance(one, FunctionType) else gc.get_referents(one)
        )
        for each in inner:
            if id(each) not in seen:
                seen.add(id(each))
                left.append(each)


def landed(root: object, where: str) -> list[Any]:
    """The values of ``Class.attribute`` in an agent."""
    kind, _, attribute = where.partition(".")
    return [getattr(one, attribute) for one in parts(root) if type(one).__name__ == kind]


class Site:
    """A simulated node, for which agents are built and not started."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.node: Node = wiring.simulated_node("vega10", directory)
        self.usual = self.build("")

    def build(self, text: str, node: Node | None = None) -> wiring.Built:
        """Over the simulated node, or *node*."""
        config = Config.model_validate(tomllib.loads(text))
        here = config.overridden(socket=self.directory / "s", state_dir=self.directory)
        return wiring.build(here, node or self.node)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("settings"))


@pytest.mark.parametrize(("line", "where", "value"), ROWS, ids=lambda part: str(part))
def test_a_setting_reaches_what_acts_by_it(site: Site, line: str, where: str, value: object) -> None:
    """It has the value where the line is there, and another one where it is not."""
    assert value in landed(site.build(line), where)
    assert value not in landed(site.usual, where)


def test_banks_are_off_where_the_site_says_so(site: Site) -> None:
    """On a node whose topology is the real one: a simulated one shows containers no banks anyway."""
    real = replace(site.node, announced=True)
    assert landed(site.build("cdi.banks = false", real), "BanksMeans._off") == ["turned off by cdi.banks"]
    assert landed(site.build("", real), "BanksMeans._off") == [None]


@pytest.mark.cgroup2
def test_a_display_is_closed_where_the_site_says_so(site: Site) -> None:
    """closure.displays: else the device whose picture somebody looks at is left out, and it is said why."""
    pci = discover(site.node.tree).devices[0].pci
    connector = site.node.root / PCI / pci / "drm/card7/card7-DP-1"
    connector.mkdir(parents=True)
    (connector / "status").write_text("connected\n")
    (connector / "enabled").write_text("enabled\n")
    (usual,) = landed(site.usual, "KernelTier._leave_out")
    (closing,) = landed(site.build("closure.displays = true"), "KernelTier._leave_out")
    assert closing(pci) is None and "card7-DP-1" in usual(pci)


@pytest.mark.root
def test_a_group_administers(site: Site) -> None:
    """server.admin_group: its members have root's threads, and administer by the API; others do not."""
    text = f"server.admin_group = '{STAFF}'"
    built, config = site.build(text), Config.model_validate(tomllib.loads(text))
    classify = server_settings(config, None).classify

    def asked() -> list[bool]:
        ours, _theirs = socket.socketpair()
        caller = built.app.test_client().get("/v1/caller", environ_overrides={"gunicorn.socket": ours})
        return [classify(ours).reserved, caller.get_json()["administrator"]]

    assert as_user(STAFF, asked) == [True, True]
    assert as_user(STAFF + 1, asked) == [False, False]


def as_user(gid: int, act: Callable[[], list[bool]]) -> list[bool]:
    """What *act* gives in a process of an ordinary user with that group."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([gid])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            os.write(writer, json.dumps(act()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        told = stream.read()
    os.waitpid(child, 0)
    return json.loads(told)


def test_the_server_is_as_the_settings_say() -> None:
    """The socket, and how many requests of users are served at once."""
    config = Config.model_validate(tomllib.loads("server.socket = '/a/b'\nserver.threads = 7"))
    server = server_settings(config, None)
    assert (server.socket, server.threads) == (Path("/a/b"), 7)


def test_the_read_only_listener_is_as_the_settings_say(tmp_path: Path) -> None:
    """Its address, further names, and the token; without web.listen there is none."""
    token = tmp_path / "token"
    token.write_text("x" * 32)
    token.chmod(0o600)
    text = f"listen = '192.0.2.7:9440'\nremote = true\nhosts = ['gpu01']\ntoken_file = '{token}'\n"
    web = build_web(Config.model_validate({"web": tomllib.loads(text)}).web)
    assert web is not None and web.token is not None
    assert (web.endpoint, web.token()) == (Endpoint.parse("192.0.2.7:9440"), b"x" * 32)
    assert {"gpu01", "192.0.2.7:9440"} <= web.hosts
    assert build_web(Config().web) is None


def test_the_state_lies_where_the_settings_say(site: Site) -> None:
    """state.directory: the ledger, and what is kept over restarts."""
    assert landed(site.usual, "Ledger._path") == [site.directory / "ledger.sqlite3"]
