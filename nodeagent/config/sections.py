"""The sections of the site's settings, each value with its default and what it is for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from nodeagent.config.names import gid_of
from nodeagent.config.policy_sections import Class, Party, Quota
from nodeagent.config.section import Section as _Section
from nodeagent.domain.classes import CLASS_PATTERN
from nodeagent.domain.endpoint import Endpoint, check_host

DEFAULT_SOCKET = Path("/run/nodeagent/api.sock")
DEFAULT_STATE = Path("/var/lib/nodeagent")
DEFAULT_CDI = Path("/run/cdi")
DEFAULT_DOCKER, DEFAULT_PODMAN = Path("/run/docker.sock"), Path("/run/podman/podman.sock")
DEFAULT_SPOOL = Path("/var/spool/nodeagent/slurm")


class Server(_Section):
    """Where the agent listens, and who administers it."""

    socket: Path = Field(default=DEFAULT_SOCKET, description="the unix socket of the API")
    admin_group: str = Field(
        default="", description="group (name or number) whose members administer, besides root"
    )

    @field_validator("admin_group")
    @classmethod
    def _exists(cls, group: str) -> str:
        if group and gid_of(group) is None:
            raise ValueError(
                f"there is no group {group} on this node, so root alone administers:"
                f" make it (groupadd --system {group}), or name another"
            )
        return group

    threads: int = Field(
        default=16, ge=4, le=64, description="threads for users' requests; root has 4 of its own"
    )


class State(_Section):
    """Where the ledger lives."""

    directory: Path = Field(default=DEFAULT_STATE, description="directory of the ledger, mode 0700")


class Defaults(_Section):
    """What a request gets that does not say."""

    shared_cu: float = Field(
        default=25.0, gt=0, le=100, description="percent of a device's CUs in its shared set"
    )
    ttl_seconds: int = Field(default=900, ge=1, description="life of a lease that is anchored by time alone")
    max_ttl_seconds: int = Field(
        default=86_400, ge=1, le=86_400, description="longest life that may be asked for"
    )
    start_seconds: int = Field(
        default=60, ge=1, description="time in which a holder must appear in its lease"
    )


class Devices(_Section):
    """What of the node is granted."""

    include_apus: bool = Field(default=False, description="grant APUs that sit beside a discrete GPU too")
    reserve_percent: float = Field(
        default=1.0, ge=0, lt=100, description="percent of VRAM that is never granted"
    )
    shares: dict[str, Annotated[int, Field(ge=1, le=512)]] = Field(
        default={},
        description="leases that may share a device at once, by device, product, model or target, or a glob",
    )
    owner: Literal["auto", "slurm", "local", "any"] = Field(
        default="auto", description="whose the devices are; auto: those that gres.conf names are Slurm's"
    )
    reserved: dict[str, list[Party]] = Field(
        default={},
        description="who alone may lease a device: user:NAME, group:NAME, kind:KIND; by device as `shares`",
    )
    on_uncorrectable: Literal["refuse", "report"] = Field(
        default="refuse",
        description="refuse: nothing new on a card with uncorrectable errors that nobody acknowledged",
    )
    on_link_degraded: Literal["refuse", "report"] = Field(
        default="report", description="refuse: nothing new on a card whose PCI Express link is below par"
    )
    gate: Literal["off", "acl"] = Field(
        default="off", description="acl: device nodes are closed to users that hold no lease there"
    )
    gate_exempt_uids: list[Annotated[int, Field(ge=0)]] = Field(
        default=[], description="uids of services that keep every device node while the gate is on"
    )
    gate_on_leftover: Literal["report", "kill"] = Field(
        default="report", description="what becomes of a program outside leases that has a closed node open"
    )


ComputeMode = Literal["spx", "dpx", "tpx", "qpx", "cpx"]


class Partitions(_Section):
    """Into what the node's cards are to be divided."""

    modes: dict[str, ComputeMode] = Field(
        default={},
        description="compute partition modes by PCI address, product, model or target, or a glob",
    )
    apply_at_start: bool = Field(
        default=False,
        description="put cards that nobody uses into these modes when the agent starts or reloads",
    )


class Guarantee(_Section):
    """What every lease of the node must be held by, whatever its request says."""

    memory: Literal["kernel", "supervised", "hook", "advisory"] = Field(
        default="advisory", description="weakest memory tier that is granted at all"
    )


class Hook(_Section):
    """The library that keeps programs to their slice from within."""

    enabled: bool = Field(default=True, description="load the hook into the programs of leases")


class Cdi(_Section):
    """Leases as devices of the Container Device Interface."""

    enabled: bool = Field(default=True, description="make a lease a CDI device where its request asks for it")
    directory: Path = Field(
        default=DEFAULT_CDI, description="where the engines look for CDI files; root's alone to write"
    )
    banks: bool = Field(
        default=True, description="show containers KFD's memory banks no larger than their slice"
    )


class Watch(_Section):
    """Looking at what leases and others really use."""

    seconds: float = Field(default=5.0, ge=0.5, description="time between two looks at who uses the GPUs")
    on_overuse: Literal["report", "kill"] = Field(
        default="report", description="kill: a lease that uses more VRAM than it was granted ends"
    )
    tolerance_percent: float = Field(
        default=2.0, ge=0, le=100, description="percent of the grant, beside 64 MiB, that is no over-use"
    )
    stalled_seconds: float = Field(
        default=600.0, ge=0, description="busy time without a sign of progress that is reported; 0: never"
    )


class Idle(_Section):
    """Leases that hold a GPU and do no work on it."""

    after_seconds: float = Field(
        default=0.0, ge=0, description="time without work after which a lease is told of as idle; 0: never"
    )
    action: Literal["report", "release"] = Field(
        default="report", description="release: a lease that stays idle ends"
    )
    warn_seconds: float = Field(
        default=600.0, ge=0, description="time from the event to the end, within which it may work again"
    )
    exempt: list[Literal["slurm", "docker", "process", "client"]] = Field(
        default=["slurm"], description="kinds of holders that are never idle: Slurm has its own time limits"
    )


class Closure(_Section):
    """What cgroups outside leases get of VRAM, so that the limits of leases mean something."""

    enabled: bool = Field(
        default=True, description="give nothing outside leases, on devices whose limits were tried and hold"
    )
    exempt: list[str] = Field(
        default=[], description="cgroups that are left open: paths, each * within one name"
    )
    displays: bool = Field(default=False, description="close devices that drive a display too")
    probe: str = Field(
        default="", description="program that tries an allocation: PROGRAM RENDER_NODE GPU_ID BYTES"
    )


class Limits(_Section):
    """What one user may ask for; administrators are not counted."""

    live_leases: int = Field(default=16, ge=1, description="live leases of one user")
    queued_leases: int = Field(default=8, ge=0, description="waiting requests of one user")
    grants_per_second: float = Field(default=5.0, gt=0, description="grants a second of one user")
    keep_seconds: float = Field(
        default=3600.0,
        ge=0,
        le=86_400,
        description="time that one user's waiting requests keep devices on end",
    )
    priority: Literal["high", "normal"] = Field(
        default="normal", description="the highest place in the line that one may ask for, without a class"
    )
    queue_priority: Literal["high", "normal", "low"] = Field(
        default="normal", description="the highest priority of hardware queues that one may ask for"
    )


class Privacy(_Section):
    """What users see of each other."""

    leases: Literal["masked", "open"] = Field(
        default="masked", description="masked: others' holders are hidden; open: everybody sees them"
    )


class Release(_Section):
    """How a slice comes back."""

    timeout_seconds: float = Field(
        default=30.0, gt=0, description="time for each step of proof, then quarantine"
    )
    retry_seconds: float = Field(
        default=60.0, gt=0, description="time between two proofs of a quarantined slice"
    )
    interrupt_seconds: float = Field(
        default=0.0, ge=0, description="time after SIGINT, which is sent before SIGTERM where this is not 0"
    )
    grace_seconds: float = Field(
        default=5.0, ge=0, description="time after SIGTERM, before what still runs in the lease is killed"
    )
    on_lost: Literal["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL"] = Field(
        default="SIGTERM", description="sent instead where the lease lost its device, as by a GPU reset"
    )
    leak_tolerance_bytes: int = Field(
        default=256 << 20,
        ge=0,
        description="VRAM of a card that may be nobody's when a slice there is given back without dmem",
    )
    ipc: bool = Field(
        default=True, description="remove what is provably left in shared memory by a lease's programs"
    )


class Slurm(_Section):
    """How Slurm's jobs get their leases."""

    enabled: bool = Field(default=True, description="answer Slurm's scripts; off: no job has a lease")
    gres_conf: str = Field(
        default="", description="gres.conf; empty: beside SLURM_CONF, or where Slurm keeps it"
    )
    request_from: Literal["none", "extra", "comment"] = Field(
        default="none", description="where job_submit.lua writes what a job asks for; none: nothing is read"
    )
    spool: Path = Field(
        default=DEFAULT_SPOOL, description="where the scripts leave the calls that nobody answered"
    )


class Docker(_Section):
    """Leases of containers, docker's and podman's."""

    enabled: bool = Field(default=True, description="grant leases to containers")
    socket: Path = Field(default=DEFAULT_DOCKER, description="the unix socket of docker's API")
    podman_socket: Path = Field(default=DEFAULT_PODMAN, description="the unix socket of podman's API")
    on_ended: Literal["stop", "report"] = Field(
        default="stop", description="what becomes of the container of a lease that is over"
    )
    on_foreign: Literal["report", "stop"] = Field(
        default="report", description="what becomes of a container that holds a GPU and has no lease"
    )


class Web(_Section):
    """The read-only TCP listener, for Prometheus and the dashboard."""

    listen: str = Field(default="", description="its address and port, such as 127.0.0.1:9440; empty: none")
    token_file: str = Field(
        default="", description="file of the token that is asked for there, root's alone; empty: none is"
    )
    remote: bool = Field(
        default=False, description="allow an address that other hosts reach; needs token_file"
    )
    hosts: list[str] = Field(
        default=[], description="further names it goes by in Host headers: NAME or NAME:PORT"
    )

    @field_validator("listen")
    @classmethod
    def _numeric(cls, text: str) -> str:
        if text:
            Endpoint.parse(text)
        return text

    @field_validator("hosts")
    @classmethod
    def _names(cls, names: list[str]) -> list[str]:
        return [check_host(name) for name in names]

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        if self.listen and not Endpoint.parse(self.listen).loopback:
            if not self.remote:
                raise ValueError(
                    f"listen: other hosts reach {self.listen}: take a loopback address, or set remote = true"
                )
            if not self.token_file:
                raise ValueError("token_file: has to be set where remote is true")
        return self


class Events(_Section):
    """What is remembered of what happened."""

    days: float = Field(default=90.0, gt=0, description="days that events are kept")
    megabytes: int = Field(default=200, ge=1, description="MiB of events that are kept, the newest")


class Metrics(_Section):
    """What is measured."""

    leases: bool = Field(default=False, description="metrics of each lease too, by its number")


_Mode = Literal["enforce", "observe"]


class Mode(_Section):
    """Whether leases hold anything: observe works out, tells and counts, and refuses and limits nothing."""

    slurm: _Mode = Field(default="enforce", description="enforce, or only observe, leases of Slurm's jobs")
    docker: _Mode = Field(default="enforce", description="the same of containers' leases")
    process: _Mode = Field(
        default="enforce", description="the same of `gpulease run` and of adopted processes"
    )
    client: _Mode = Field(default="enforce", description="the same of `gpulease grant` and other clients")


class Config(_Section):
    """Every setting with its default."""

    server: Server = Server()
    state: State = State()
    defaults: Defaults = Defaults()
    devices: Devices = Devices()
    partitions: Partitions = Partitions()
    guarantee: Guarantee = Guarantee()
    hook: Hook = Hook()
    cdi: Cdi = Cdi()
    watch: Watch = Watch()
    idle: Idle = Idle()
    closure: Closure = Closure()
    limits: Limits = Limits()
    mode: Mode = Mode()
    privacy: Privacy = Privacy()
    release: Release = Release()
    slurm: Slurm = Slurm()
    docker: Docker = Docker()
    web: Web = Web()
    metrics: Metrics = Metrics()
    events: Events = Events()
    quota: list[Quota] = Field(default=[])
    classes: dict[Annotated[str, Field(pattern=CLASS_PATTERN)], Class] = Field(default={})

    def overridden(self, *, socket: Path | None, state_dir: Path | None) -> Config:
        """These settings, with what the command line said instead."""
        server = self.server.model_copy(update={"socket": socket} if socket else {})
        state = self.state.model_copy(update={"directory": state_dir} if state_dir else {})
        return self.model_copy(update={"server": server, "state": state})
