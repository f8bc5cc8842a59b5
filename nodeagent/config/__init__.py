"""The site's settings, `/etc/nodeagent/nodeagent.toml`: one frozen model, one table of defaults.

`check` is strict and names every wrong key. A start is lenient: it drops what is wrong, says so, and goes on
with the default, so that one typing error does not stop a fleet.
"""

from nodeagent.config.changes import AT_START, changed
from nodeagent.config.names import gid_of, members_of, uid_of
from nodeagent.config.policy_sections import EACH, TABLES, Quota
from nodeagent.config.reading import DEFAULT_PATH, check, read, verdict
from nodeagent.config.sections import (
    DEFAULT_CDI,
    DEFAULT_DOCKER,
    DEFAULT_PODMAN,
    DEFAULT_SOCKET,
    DEFAULT_SPOOL,
    DEFAULT_STATE,
    Cdi,
    Closure,
    Config,
    Defaults,
    Devices,
    Docker,
    Events,
    Guarantee,
    Hook,
    Idle,
    Limits,
    Metrics,
    Mode,
    Partitions,
    Privacy,
    Release,
    Server,
    Slurm,
    State,
    Watch,
    Web,
)
from nodeagent.config.showing import keys, render

__all__ = [
    "AT_START",
    "DEFAULT_CDI",
    "DEFAULT_DOCKER",
    "DEFAULT_PATH",
    "DEFAULT_PODMAN",
    "DEFAULT_SOCKET",
    "DEFAULT_SPOOL",
    "DEFAULT_STATE",
    "EACH",
    "TABLES",
    "Cdi",
    "Closure",
    "Config",
    "Defaults",
    "Devices",
    "Docker",
    "Events",
    "Guarantee",
    "Hook",
    "Idle",
    "Limits",
    "Metrics",
    "Mode",
    "Partitions",
    "Privacy",
    "Quota",
    "Release",
    "Server",
    "Slurm",
    "State",
    "Watch",
    "Web",
    "changed",
    "check",
    "gid_of",
    "keys",
    "members_of",
    "read",
    "render",
    "uid_of",
    "verdict",
]
