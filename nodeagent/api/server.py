"""The agent's one gunicorn worker on its unix socket; what gunicorn opens by itself is closed."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import structlog
from flask import Flask
from gunicorn.app.base import BaseApplication  # type: ignore[import-untyped]
from gunicorn.glogging import Logger  # type: ignore[import-untyped]

from nodeagent.api.admission import Classify, Limits
from nodeagent.api.arbiter import AgentArbiter
from nodeagent.api.web import open_listener
from nodeagent.api.worker import FairWorker
from nodeagent.domain.endpoint import Endpoint
from nodeagent.domain.errors import OutsideFault

log = structlog.get_logger()

FIRST_INHERITED = 3  # SD_LISTEN_FDS_START
LONGEST_PATH = 107  # bytes; sun_path less its NUL


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Hooks:
    """What happens around serving. Nothing that holds a descriptor or a thread may be made before *start*."""

    start: Callable[[], None] = _nothing  # in each worker, after the fork
    leave: Callable[[], None] = _nothing  # in a worker that is to end: nothing is to wait any more
    stop: Callable[[], None] = _nothing  # in a worker that ends orderly


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """*classify* says whose a connection is, and must tell a container's root from root."""

    socket: Path
    classify: Classify
    threads: int = 16
    reserved_threads: int = 4
    limits: Limits = field(default_factory=Limits)
    web: Endpoint | None = None  # of the read-only listener
    graceful_seconds: int = 10
    log_level: str = "warning"


@dataclass(frozen=True, slots=True)
class Serving:
    """An application, and how it is served: what one reading of the site's settings makes."""

    make_app: Callable[[], Flask]
    settings: ServerSettings
    hooks: Hooks


class Reload(Protocol):
    """What SIGHUP is about; called by the arbiter, in its own process."""

    def begin(self) -> None: ...

    def make(self) -> Serving:
        """What is to be served from now on, by the socket that is open. Whatever it raises, it is not."""

    def done(self) -> None:
        """A worker is up that serves it."""

    def failed(self, why: str) -> None:
        """What was served before is served on."""


class AgentServer(BaseApplication):  # type: ignore[misc]
    """Runs *make_app*'s application until it is told to stop; SIGHUP has it served anew, as *reload* says."""

    def __init__(
        self,
        make_app: Callable[[], Flask],
        settings: ServerSettings,
        hooks: Hooks,
        reload: Reload | None = None,
    ) -> None:
        self.reload_with = reload
        self.serving = Serving(make_app, settings, hooks)
        self.web_listener: socket.socket | None = None
        self._web: Endpoint | None = None
        super().__init__()
        self._note()

    def take(self, serving: Serving) -> None:
        """Have the next worker serve this. Where its application cannot be made, nothing has changed."""
        made = serving.make_app()
        self.serving = serving
        self.do_load_config()
        self.callable = made
        self._note()

    def listen(self) -> None:
        """Open the read-only listener, where it is not open yet. For the arbiter, while no worker has it.

        gunicorn takes either the service manager's sockets or its own, so this is neither.
        """
        if self._web == self.serving.settings.web:
            return
        if self.web_listener is not None:
            self.web_listener.close()
        self.web_listener, self._web = None, self.serving.settings.web
        if self._web is not None:
            try:
                self.web_listener = open_listener(self._web)
            except OSError as error:  # leases matter more than who looks at them
                address = f"{self._web.address}:{self._web.port}"
                log.error("no read-only listener", address=address, why=str(error))

    def load_config(self) -> None:
        for name, value in _configuration(self.serving.settings, self.serving.hooks).items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        return self.serving.make_app()

    def run(self) -> None:
        """Serve, and return never or by SystemExit.

        Raises:
            OutsideFault: the socket's path cannot be used, or another agent answers there.
        """
        if not inherits_socket():
            check_socket_path(self.serving.settings.socket)
        self.listen()
        AgentArbiter(self).run()

    def _note(self) -> None:
        """What the worker reads."""
        settings = self.serving.settings
        self.classify = settings.classify
        self.limits = settings.limits
        self.reserved_threads = settings.reserved_threads
        self.leave = self.serving.hooks.leave


class RootsLog(Logger):  # type: ignore[misc]
    """gunicorn's own lines go to the root logger, which gives them the form of all the others."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.propagate = True


def inherits_socket() -> bool:
    """Whether the service manager opened the socket for this process (sd_listen_fds(3))."""
    return os.environ.get("LISTEN_PID") == str(os.getpid()) and os.environ.get("LISTEN_FDS", "0") != "0"


def inherited_path() -> Path | None:
    """Where the socket that the service manager opened listens, if it did."""
    if not inherits_socket():
        return None
    with socket.socket(fileno=os.dup(FIRST_INHERITED)) as inherited:
        return Path(os.fsdecode(inherited.getsockname()))


def check_socket_path(path: Path) -> None:
    """Refuse a path that cannot become our socket. A socket that nobody serves any more is fine."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise OutsideFault(path, f"a unix socket's path has at most {LONGEST_PATH} bytes")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            why = f"the directory {path.parent} does not exist: make it, or choose another socket"
            raise OutsideFault(path, why) from None
        return
    if not stat.S_ISSOCK(mode):
        raise OutsideFault(path, "there is something that is no socket; remove it or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError as error:
            raise OutsideFault(path, f"cannot tell whether an agent serves it: {error}") from error
    raise OutsideFault(path, "another agent answers there")


def _stop_in(worker: Any, hooks: Hooks) -> None:
    """The arbiter calls this hook, too, for a worker that it finds dead; what is to stop is not there."""
    if worker.pid == os.getpid():
        hooks.stop()


def _configuration(settings: ServerSettings, hooks: Hooks) -> dict[str, Any]:
    return {
        "bind": f"unix:{settings.socket}",
        "umask": 0o111,  # every local user may ask; who they are is the peer's credentials
        "worker_class": FairWorker,
        "workers": 1,  # one reconciler, one ledger writer
        "threads": settings.threads,
        "preload_app": True,
        "max_requests": 0,
        "keepalive": 0,
        "timeout": 60,
        "graceful_timeout": settings.graceful_seconds,
        # A unix peer counts as a trusted proxy for gunicorn, so no header may be one that proxies set.
        "forwarder_headers": "",
        "secure_scheme_headers": {},
        "forwarded_allow_ips": "",
        "header_map": "drop",
        "control_socket_disable": True,
        "http_protocols": "h1",
        "http_parser": "python",  # the one that takes over what the accept loop has read
        "limit_request_line": 4094,
        "limit_request_fields": 64,
        "limit_request_field_size": 4094,
        "accesslog": None,
        "errorlog": None,  # no handler of gunicorn's: see RootsLog
        "logger_class": RootsLog,
        "loglevel": settings.log_level,
        "post_worker_init": lambda _worker: hooks.start(),
        "worker_exit": lambda _arbiter, worker: _stop_in(worker, hooks),
    }
