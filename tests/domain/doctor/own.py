"""What the checks of the agent, its state, users and leftovers say of good nodes and of bad ones."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.domain.doctor.agent import Service, State
from nodeagent.domain.doctor.leftovers import Leftovers
from nodeagent.domain.doctor.usage import Memory, Usage, User

from .case import FAIL, OK, UNSEEN, WARN, Case

MIB = 1 << 20
SERVICE = Service(
    settings="/etc/nodeagent/nodeagent.toml: valid",
    health=("agent: well", 0),
    version="0.2.0",
    served="0.2.0",
    socket="/run/nodeagent/api.sock",
    units={"nodeagent.service": "active, enabled", "nodeagent.socket": "active, enabled"},
)
STATE = State("/var/lib/nodeagent", revision="0002", newest="0002", free={"/run": 1 << 30})
UNREADABLE = replace(STATE, revision=None, unreadable="only root may")
NO_LEDGER = replace(STATE, revision=None)
LEASED = User(10, "python3", 4096 * MIB, 2, True)
USAGE = Usage((LEASED,), (Memory("A", 4400 * MIB, 4096 * MIB, 200 * MIB, 1 << 37),))
LEFT = Leftovers(
    live=frozenset({7}),
    cgroups=frozenset({7}),
    hook=frozenset({7}),
    banks=frozenset({7}),
    cdi=frozenset({7}),
    sidecars=frozenset({7}),
    acl_uids=frozenset({1000, 33}),
    lease_uids=frozenset({1000}),
    exempt_uids=frozenset({33}),
    mounts=("/run/nodeagent/hook/usage/0", "/run/nodeagent/hook/usage/1"),
)
UNKNOWN = replace(LEFT, live=None)


def service(**changes: object) -> Service:
    return replace(SERVICE, **changes)


def state(**changes: object) -> State:
    return replace(STATE, **changes)


def users(*others: User, **changes: object) -> Usage:
    return replace(USAGE, users=(LEASED, *others), **changes)


def pool(used: int, idle: int | None = 200 * MIB) -> tuple[Memory]:
    return (Memory("A", used, 4096 * MIB, idle, 1 << 37),)


def left(**changes: object) -> Leftovers:
    return replace(LEFT, **changes)


STRANGER = User(11, "vllm", 1024 * MIB, 1, False)
IDLER = User(12, "exporter", 0, 0, False)
CASES = (
    Case("settings", SERVICE, OK),
    Case("settings", service(complaints=("watch.second: unknown key",)), FAIL, "watch.second"),
    Case("agent", SERVICE, OK, "well"),
    Case("agent", service(health=("agent: no new leases: disk full", 1)), WARN, "disk full"),
    Case("agent", service(health=("agent: not answering", 2)), FAIL, "not answering"),
    Case("agent-version", SERVICE, OK),
    Case("agent-version", service(served="0.1.0"), WARN, "0.1.0 runs"),
    Case("agent-version", service(served=None), UNSEEN),
    Case("enforcement", SERVICE, OK),
    Case("enforcement", service(bypass="until 20:00: a rush"), WARN, "bypassed until 20:00: a rush"),
    Case("enforcement", service(observed=("slurm",)), WARN, "slurm"),
    Case("enforcement", service(served=None), UNSEEN),
    Case("agent-socket", SERVICE, OK),
    Case("agent-socket", service(socket_trouble="mode 600"), WARN, "600"),
    Case("units", SERVICE, OK),
    Case("units", service(units={"nodeagent.service": "failed, enabled"}), FAIL, "failed"),
    Case("units", service(units={"nodeagent.service": "active, disabled"}), WARN, "disabled"),
    Case("units", service(units={"nodeagent.service": "inactive, enabled"}), WARN, "inactive"),
    Case("units", service(units={}), WARN, "at boot"),
    Case("units", service(units={}, systemd=False), OK),
    Case("agent-restarts", SERVICE, OK),
    Case("agent-restarts", service(restarts=3), WARN, "3"),
    Case("state-directory", STATE, OK),
    Case("state-directory", state(trouble="mode 755"), FAIL, "755"),
    Case("ledger-schema", STATE, OK),
    Case("ledger-schema", state(revision="0001"), WARN, "0001"),
    Case("ledger-schema", NO_LEDGER, OK),
    Case("ledger-schema", UNREADABLE, UNSEEN),
    Case("ledger-sound", STATE, OK),
    Case("ledger-sound", state(problems=("CU 3 is held by nothing",)), FAIL, "CU 3"),
    Case("ledger-sound", state(checked=False), UNSEEN, "time"),
    Case("ledger-sound", UNREADABLE, UNSEEN),
    Case("ledger-sound", NO_LEDGER, OK),
    Case("ledger-log", STATE, OK),
    Case("ledger-log", state(log_bytes=100 * MIB), WARN, "100 MiB"),
    Case("quarantine", STATE, OK),
    Case("quarantine", state(quarantined=2), WARN, "2 slices"),
    Case("quarantine", UNREADABLE, UNSEEN),
    Case("disk-space", STATE, OK),
    Case("disk-space", state(free={"/run": MIB, "/var/lib/nodeagent": 1 << 30}), FAIL, "/run: 1 MiB"),
    Case("clock", STATE, OK),
    Case("clock", state(synchronised=False), WARN),
    Case("clock", state(synchronised=None), UNSEEN),
    Case("vram-baseline", USAGE, OK),
    Case("vram-baseline", users(pools=pool(8192 * MIB)), WARN, "A: 3896 MiB"),
    Case("vram-baseline", users(pools=pool(4400 * MIB, idle=None)), WARN, "304 MiB"),
    Case("vram-baseline", users(pools=pool(8192 * MIB), complete=False), UNSEEN, "root"),
    Case("foreign-users", USAGE, OK),
    Case("foreign-users", users(STRANGER), WARN, "pid 11 (vllm), 1024 MiB"),
    Case("foreign-users", users(IDLER), OK),
    Case("foreign-users", users(replace(STRANGER, leased=None)), UNSEEN),
    Case("idle-openers", USAGE, OK),
    Case("idle-openers", users(IDLER), WARN, "pid 12"),
    Case("idle-openers", users(replace(IDLER, leased=True)), OK),
    Case("stuck-processes", USAGE, OK),
    Case("stuck-processes", users(replace(STRANGER, state="D")), FAIL, "pid 11"),
    Case("evictions", USAGE, OK),
    Case("evictions", users(replace(STRANGER, evicted_ms=40)), WARN, "40 ms"),
    Case("idle-measured", USAGE, OK),
    Case("idle-measured", users(blind=("A: gfx1201 tells no cu_occupancy",)), WARN, "gfx1201"),
    Case("stale-cgroups", LEFT, OK),
    Case("stale-cgroups", left(cgroups=frozenset({7, 9})), WARN, "cgroup of lease 9"),
    Case("stale-cgroups", UNKNOWN, UNSEEN, "root"),
    Case("stale-hook-files", LEFT, OK),
    Case("stale-hook-files", left(hook=frozenset({9})), WARN, "hook files of lease 9"),
    Case("stale-hook-files", UNKNOWN, UNSEEN),
    Case("stale-cdi-files", LEFT, OK),
    Case("stale-cdi-files", left(cdi=frozenset({9})), WARN, "CDI file of lease 9"),
    Case("stale-bank-files", LEFT, OK),
    Case("stale-bank-files", left(banks=frozenset({9})), WARN, "memory banks of lease 9"),
    Case("stale-sidecars", LEFT, OK),
    Case("stale-sidecars", left(sidecars=frozenset({9})), WARN, "sidecar of lease 9"),
    Case("stale-acls", LEFT, OK),
    Case("stale-acls", left(acl_uids=frozenset({1001})), WARN, "uid 1001"),
    Case("stale-acls", UNKNOWN, UNSEEN),
    Case("stale-mounts", LEFT, OK),
    Case("stale-mounts", left(mounts=("/run/nodeagent/hook/usage/0",) * 2), WARN, "2 times"),
    Case("other-agents", LEFT, OK),
    Case("other-agents", left(instances=("gpulease_00.slice",)), WARN, "gpulease_00"),
)
