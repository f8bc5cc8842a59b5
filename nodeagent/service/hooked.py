"""The hook tier: a library in the holder's programs that keeps them to their bytes and CUs.

It holds programs that are honest or careless. Its own holder can go around it: see docs/enforcement.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from nodeagent.adapters.hook_files import HookFiles
from nodeagent.domain import container
from nodeagent.domain.guarantee import Compute, Hold, Memory, Queues
from nodeagent.service.charging import chargeable, charged, devices_of, queues_held
from nodeagent.service.effects import Arguments, Evidence, Pending, Planned, Told
from nodeagent.service.means import Setting
from nodeagent.service.orders import Tier

HOOK = "hook"


class HookMeans:
    """Prepares the hook's files for leases whose programs start after the grant. *files* None: turned off."""

    at_best = Hold(memory=Memory.HOOK, compute=Compute.HOOK)

    def __init__(self, files: HookFiles | None) -> None:
        self._files = files

    def tier(self) -> Tier:
        why = self._unavailable()
        return Tier(
            "hook", why is None, why or "a library in the lease's programs refuses what is over its slice"
        )

    def promise(self, setting: Setting) -> Hold:
        loading = _loading(setting)
        certain = loading is None or loading.certain
        return self.at_best if certain and self._applies(setting) else Hold()

    def plan(self, lease_id: int, setting: Setting) -> Sequence[Planned]:
        if not self._applies(setting):
            return []
        demanded = setting.demanded.memory
        strict = demanded is not None and demanded is not Memory.ADVISORY
        planned = {"lease": lease_id, "uid": setting.uid, "strict": strict, **charged(setting)}
        loading = _loading(setting)
        return [Planned(HOOK, planned if loading is None else {**planned, "loading": asdict(loading)})]

    def _applies(self, setting: Setting) -> bool:
        loading = _loading(setting)
        if loading is not None and not loading.possible:
            return False
        return not setting.adopted and chargeable(setting) and self._unavailable() is None

    def _unavailable(self) -> str | None:
        return "turned off by hook.enabled" if self._files is None else self._files.unavailable()


def _loading(setting: Setting) -> container.Loading | None:
    """How programs in the lease's container load the hook; None where it has none."""
    return None if setting.container is None else container.loading_of(setting.container.libc)


class HookEffect:
    """The hook's files of one lease, and the variables that make its programs load the hook.

    In a container, what makes them is the mounts, or the image's own loader and a variable: see `container`.
    """

    def __init__(self, files: HookFiles) -> None:
        self._files = files

    def apply(self, arguments: Arguments) -> Evidence:
        path = self._files.prepare(
            int(arguments["lease"]),
            int(arguments["uid"]),
            devices_of(arguments),
            strict=bool(arguments["strict"]),
            contained="loading" in arguments,
        )
        return {"limits": str(path)}

    def verify(self, arguments: Arguments, evidence: Evidence) -> Evidence:
        self._files.verify(
            int(arguments["lease"]),
            int(arguments["uid"]),
            devices_of(arguments),
            strict=bool(arguments["strict"]),
            contained="loading" in arguments,
        )
        queues = queues_held(arguments, Queues.HOOK)
        holds = {"holds": {"memory": Memory.HOOK, "compute": Compute.HOOK, **queues}}
        if "loading" in arguments:
            lease, loading = int(arguments["lease"]), container.Loading(**arguments["loading"])
            given = inside(self._files, lease, self._files.limits_path(lease), loading)
            return {**holds, **given} if loading.certain else given
        variables = {
            "LD_PRELOAD": str(self._files.library()),
            "GPULEASE_HOOK": str(self._files.limits_path(int(arguments["lease"]))),
        }
        return {**holds, "environment": variables}

    def told(self, arguments: Arguments) -> Told:
        usage = self._files.usage(int(arguments["lease"]), len(arguments["devices"]))
        return Told(usage.used_bytes, usage.denied)

    def undo(self, arguments: Arguments, evidence: Evidence) -> Evidence | Pending:
        self._files.remove(int(arguments["lease"]))
        return {"removed": True}


def inside(files: HookFiles, lease: int, limits: Path, loading: container.Loading) -> Evidence:
    """The mounts by which a container has the hook, and the variable for loaders that read no file."""
    mounts = [
        _mount(limits, container.LIMITS),
        _mount(files.usage_path(lease), container.USAGE, read_only=False),
        _mount(files.library(), container.LIBRARY),
    ]
    if loading.by_file:
        mounts.append(_mount(files.preload_path(lease), container.PRELOAD))
    variables = {"LD_PRELOAD": container.LIBRARY} if loading.by_variable else {}
    return {"mounts": mounts, "environment": variables}


def _mount(source: Path, target: str, *, read_only: bool = True) -> dict[str, str | bool]:
    return {"source": str(source), "target": target, "read_only": read_only}
