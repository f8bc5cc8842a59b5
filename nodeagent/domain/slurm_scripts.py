"""The settings of Slurm's scripts, read as client/slurm/agent.sh does, and what must agree with them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_FORMS = {
    "socket": ("/run/nodeagent/api.sock", "/.*"),
    "deadline": ("8", "[1-9][0-9]?"),
    "on_agent_down": ("drain", "drain|fail|allow"),
    "epilog_wait": ("30", "[1-9][0-9]{0,2}"),
    "epilog_trouble": ("ignore", "ignore|drain"),
    "run": ("/run/nodeagent/slurm", "/.*"),
    "spool": ("/var/spool/nodeagent/slurm", "/.*"),
    "bypass": ("/run/nodeagent/bypass/gpulease", "/.*"),
}
_PLUGIN = re.compile(r"\s*(?:required|optional)\s+\S*/gpulease\.so(?:\s+(.*))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ScriptSettings:
    """Every key with the value that counts; *unread*: keys of lines that the scripts do not understand."""

    values: Mapping[str, str] = field(
        default_factory=lambda: {key: default for key, (default, _) in _FORMS.items()}
    )
    unread: tuple[str, ...] = ()

    def seconds(self, key: str) -> int:
        return int(self.values[key])


def script_settings(text: str) -> ScriptSettings:
    """The settings in *text*, the content of prolog.conf."""
    values, unread = dict(ScriptSettings().values), []
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if not line or line.startswith("#"):
            continue
        if key in _FORMS and re.fullmatch(_FORMS[key][1], value):
            values[key] = value
        else:
            unread.append(key)
    return ScriptSettings(values, tuple(unread))


def plugin_run(text: str) -> str | None:
    """Where the plugin that *text*, the content of plugstack.conf, loads looks for what the prolog left.

    None where it loads none of ours.
    """
    for line in text.splitlines():
        if match := _PLUGIN.fullmatch(line.partition("#")[0].rstrip()):
            words = (match[1] or "").split()
            runs = [word.removeprefix("run=") for word in words if word.startswith("run=")]
            return runs[0] if runs else ScriptSettings().values["run"]
    return None
