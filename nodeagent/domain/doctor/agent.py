"""Checks of the agent itself: its settings, whether it runs, its units, its state, disks and clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.domain.doctor.check import Verdict, check, either, fail, ok, some, unseen, warn

AGENT, STATE = "agent", "state"
_MIB = 1 << 20
NEEDED_BYTES = 64 * _MIB  # for the ledger, its log and its reserve, on each file system that the agent writes
_LARGE_LOG = 64 * _MIB  # of SQLite's write-ahead log, which starts over after one


@dataclass(frozen=True, slots=True)
class Service:
    """The agent as it runs. *health*: its line and exit code; *served*: the version that answers."""

    settings: str
    complaints: tuple[str, ...] = ()
    health: tuple[str, int] = ("not answering", 2)
    version: str = ""
    served: str | None = None
    socket: str = ""
    socket_trouble: str | None = None  # why others than its users might serve or reach it
    units: Mapping[str, str] = field(default_factory=dict)  # by unit: what systemctl calls its state
    restarts: int = 0  # of nodeagent.service since the boot
    bypass: str | None = None  # until when, and why, nothing is enforced
    observed: tuple[str, ...] = ()  # kinds of holders whose leases are only observed
    systemd: bool = True


@dataclass(frozen=True, slots=True)
class State:
    """The state directory and the ledger in it. *revision* None: no ledger yet."""

    directory: str
    trouble: str | None = None  # who else can read or write it
    revision: str | None = None
    newest: str = ""
    problems: tuple[str, ...] = ()
    checked: bool = True  # whether the check of the database came to its end in time
    unreadable: str | None = None
    quarantined: int = 0
    log_bytes: int = 0
    free: Mapping[str, int] = field(default_factory=dict)  # bytes by directory
    synchronised: bool | None = True  # the clock
    clock_error_ms: int = 0


@check(
    Service,
    AGENT,
    fix="mend what `nodeagent config check` names: an unknown key or wrong value is left out at the start",
    issue="ROCm/container-toolkit#116",
)
def settings(service: Service) -> Verdict:
    """Every key and value of the settings is known."""
    if service.complaints:
        return fail(some(service.complaints))
    return ok(service.settings)


@check(
    Service,
    AGENT,
    fix="systemctl start nodeagent, then journalctl -u nodeagent: leases keep their limits meanwhile",
    issue="nebius/nebius-solutions-library#265",
)
def agent(service: Service) -> Verdict:
    """The agent answers, and grants leases."""
    line, code = service.health
    return (ok, warn, fail)[min(code, 2)](line.removeprefix("agent: "))


@check(
    Service,
    AGENT,
    fix="systemctl restart nodeagent: leases go on",
    issue="kubernetes/kubernetes#109595",
)
def agent_version(service: Service) -> Verdict:
    """The agent that runs is the one that is installed."""
    if service.served is None:
        return unseen("no agent answers")
    if service.served != service.version:
        return warn(f"{service.served} runs, {service.version} is installed")
    return ok(service.served)


@check(
    Service,
    AGENT,
    fix='`nodeagent bypass off`; mode.<kind> = "enforce" in the settings, then systemctl reload nodeagent',
    issue="kai-scheduler/KAI-Scheduler#708",
)
def enforcement(service: Service) -> Verdict:
    """What leases say is enforced: nothing is bypassed, and no kind of holder only observed."""
    if service.served is None:
        return unseen("no agent answers")
    if service.bypass is not None:
        return warn(f"bypassed {service.bypass}")
    observed = [f"{kind} is only observed" for kind in service.observed]
    return either(observed, warn, "for every kind of holder")


@check(
    Service,
    AGENT,
    fix="let systemd make it (nodeagent.socket), in a directory of root's; the clients believe no other",
    issue="benoitc/gunicorn#160",
)
def agent_socket(service: Service) -> Verdict:
    """The API's socket is root's, in a directory of root's, and every user can reach it."""
    return either([service.socket_trouble] if service.socket_trouble else [], warn, service.socket)


@check(
    Service,
    AGENT,
    fix="systemctl status UNIT, then systemctl enable --now UNIT",
    issue="benoitc/gunicorn#1524",
)
def units(service: Service) -> Verdict:
    """The agent's systemd units are up, and come up at the next boot."""
    if not service.systemd:
        return ok("systemd does not run this node")
    if not service.units:
        return warn("no unit of nodeagent's is installed: nothing starts the agent at boot")
    failed = [f"{name}: {state}" for name, state in sorted(service.units.items()) if "failed" in state]
    if failed:
        return fail(some(failed))
    idle = [
        f"{name}: {state}"
        for name, state in sorted(service.units.items())
        if "disabled" in state or "inactive" in state
    ]
    return either(idle, warn, ", ".join(sorted(service.units)))


@check(
    Service,
    AGENT,
    fix="journalctl -u nodeagent says what ended it; `nodeagent report` collects what a bug report needs",
    issue="kubernetes/kubernetes#52678",
)
def agent_restarts(service: Service) -> Verdict:
    """The agent does not die and come back."""
    return warn(f"{service.restarts} restarts") if service.restarts else ok("none")


@check(
    State,
    STATE,
    fix="chown root and chmod 0700 it: a copy of the ledger says who runs what",
    issue="benoitc/gunicorn#2137",
)
def state_directory(state: State) -> Verdict:
    """The state directory is the agent's alone."""
    return either([state.trouble] if state.trouble else [], fail, state.directory)


@check(
    State,
    STATE,
    fix="older: `nodeagent migrate`, or start the agent; newer: install the version that wrote it",
    issue="tenstorrent/ttnn-visualizer#1002",
)
def ledger_schema(state: State) -> Verdict:
    """The ledger has the schema of this version."""
    if state.unreadable:
        return unseen(state.unreadable)
    if state.revision is None:
        return ok("no ledger yet")
    if state.revision != state.newest:
        return warn(f"schema {state.revision}, this version has {state.newest}")
    return ok(f"schema {state.revision}")


@check(
    State,
    STATE,
    fix="stop the agent, keep the file, restore a backup (docs/cli.md, nodeagent backup); leases go on",
    issue="Arize-ai/phoenix#3949",
)
def ledger_sound(state: State) -> Verdict:
    """The ledger is undamaged, and holds for each slice what it says."""
    if state.unreadable:
        return unseen(state.unreadable)
    if state.problems:
        return fail(some(state.problems))
    if state.revision is None:
        return ok("no ledger yet")
    return ok("sound") if state.checked else unseen("too large to check in the time there is")


@check(
    State,
    STATE,
    fix="look for a reader that never ends (lsof on the file); a restart of the agent starts it over",
    issue="fractal-analytics-platform/fractal-server#647",
)
def ledger_log(state: State) -> Verdict:
    """The ledger's write-ahead log is started over as it should be."""
    size = state.log_bytes // _MIB
    return warn(f"{size} MiB") if state.log_bytes > _LARGE_LOG else ok(f"{size} MiB")


@check(
    State,
    STATE,
    fix="`nodeagent journal LEASE` says what is in the way; `nodeagent clear DEVICE` tries the proof again",
    issue="ROCm/mori#473",
)
def quarantine(state: State) -> Verdict:
    """No slice is kept back because it could not be proved clean."""
    if state.unreadable:
        return unseen(state.unreadable)
    return warn(f"{state.quarantined} slices") if state.quarantined else ok("none")


@check(
    State,
    STATE,
    fix="make room: without it no new lease is granted; releases work on a reserve",
    issue="jellyfin/jellyfin.org#648",
)
def disk_space(state: State) -> Verdict:
    """There is room where the agent writes."""
    short = [
        f"{path}: {free // _MIB} MiB free" for path, free in sorted(state.free.items()) if free < NEEDED_BYTES
    ]
    return either(
        short, fail, ", ".join(f"{path} {free // _MIB} MiB" for path, free in sorted(state.free.items()))
    )


@check(
    State,
    STATE,
    fix="start chrony or systemd-timesyncd; leases do not end by this clock, but their times are shown by it",
    issue="etcd-io/etcd#6700",
)
def clock(state: State) -> Verdict:
    """The node's clock is synchronised."""
    if state.synchronised is None:
        return unseen("the kernel does not say")
    return ok(f"within {state.clock_error_ms} ms") if state.synchronised else warn("it is not synchronised")


CHECKS = (
    settings,
    agent,
    agent_version,
    enforcement,
    agent_socket,
    units,
    agent_restarts,
    state_directory,
    ledger_schema,
    ledger_sound,
    ledger_log,
    quarantine,
    disk_space,
    clock,
)
